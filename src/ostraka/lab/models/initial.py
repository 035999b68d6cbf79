"""The values that a model starts from."""

from torch import Generator, Tensor, nn


def initialise(model: nn.Module, generator: Generator) -> None:
    """Draw all weights, in the order of the layers. What was there before is overwritten.

    Convolutions keep the variance of rectified inputs (He et al. 2015), or that of gradients where
    batch norm comes next and they have no bias: it sets the inputs' variance anyhow. Linear layers
    keep the variance of their inputs as they are (LeCun et al. 1998). Biases start at zero.
    """
    for layer in model.modules():
        match layer:
            case nn.Conv2d():
                nn.init.kaiming_normal_(
                    layer.weight,
                    mode="fan_out" if layer.bias is None else "fan_in",
                    nonlinearity="relu",
                    generator=generator,
                )
                _clear(layer.bias)
            case nn.Linear():
                nn.init.kaiming_normal_(layer.weight, nonlinearity="linear", generator=generator)
                _clear(layer.bias)
            case nn.BatchNorm2d() | nn.GroupNorm():
                layer.reset_parameters()


def _clear(bias: Tensor | None) -> None:
    if bias is not None:
        nn.init.zeros_(bias)
