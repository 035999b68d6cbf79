"""Writes every vector: python -m wire_vectors"""

from wire_vectors import FOLDER, RECORDED, make, read, text


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for area, made in make(read().get(RECORDED, ())).items():
        (FOLDER / f"{area}.json").write_text(text(area, made), "utf-8")


if __name__ == "__main__":
    main()
