"""A client in plain PyTorch: it learns handwritten digits together with others.

    python pytorch_client.py --write-model first.safetensors
    ostraka init digits --clients 5 --f 1 --model first.safetensors
    ostraka enclave run --config digits/federation.toml --unsafe-simulation
    ostraka worker run --enclave 127.0.0.1:7420 --name worker-1 --key digits/keys/worker-1.key \
        --policy digits/policy.toml --unsafe-simulation    # and worker-2

and then, for each of the five clients,

    python pytorch_client.py --name client-1 --key digits/keys/client-1.key \
        --policy digits/policy.toml --part 1 --parts 5 --unsafe-simulation

The enclave ends after the last round; workers go on until they are stopped. It needs ostraka, torch
and scikit-learn.
"""

import argparse

import torch
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import ostraka


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def digits(part: int, parts: int) -> tuple[Tensor, Tensor]:
    """This client's share of the images; nobody else sees it."""
    images, labels = load_digits(return_X_y=True)
    own = slice(part - 1, None, parts)
    return torch.tensor(images[own] / 16, dtype=torch.float32), torch.tensor(labels[own])


def train(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for batch in torch.randperm(len(images)).split(32):
        optimiser.zero_grad()
        cross_entropy(model(images[batch]), labels[batch]).backward()
        optimiser.step()


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    with torch.inference_mode():
        return (model(images).argmax(dim=1) == labels).float().mean().item()


def take_part(options: argparse.Namespace) -> None:
    model, (images, labels) = network(), digits(options.part, options.parts)
    with ostraka.Client(
        options.address,
        name=options.name,
        key=options.key,
        policy=options.policy,
        unsafe_simulation=options.unsafe_simulation,
    ) as client:
        while not (fetched := client.fetch()).finished:
            start = {name: torch.from_numpy(values) for name, values in fetched.arrays.items()}
            model.load_state_dict(start)
            print(f"round {fetched.round}: accuracy {accuracy(model, images, labels):.3f}")
            train(model, images, labels)
            client.submit({name: value - start[name] for name, value in model.state_dict().items()})
    model.load_state_dict(
        {name: torch.from_numpy(values) for name, values in fetched.arrays.items()}
    )
    print(f"after the last round: accuracy {accuracy(model, images, labels):.3f}")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A client in plain PyTorch.")
    parser.add_argument("--write-model", metavar="FILE", help="write the first model, and end")
    parser.add_argument("--address", default="127.0.0.1:7420", help="HOST:PORT of the enclave")
    parser.add_argument("--name", help="of this client, as it is enrolled")
    parser.add_argument("--key", help="its key file")
    parser.add_argument("--policy", help="what it accepts as an enclave")
    parser.add_argument("--part", type=int, default=1, help="which part of the digits it holds")
    parser.add_argument("--parts", type=int, default=5, help="of how many")
    parser.add_argument(
        "--unsafe-simulation", action="store_true", help="accept an enclave without a TEE"
    )
    options = parser.parse_args(arguments)
    if not options.write_model and not (options.name and options.key and options.policy):
        parser.error("a client needs --name, --key and --policy")
    return options


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    if options.write_model:
        save_file(network().state_dict(), options.write_model)
    else:
        take_part(options)


if __name__ == "__main__":
    main()
