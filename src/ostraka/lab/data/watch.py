"""How a fetch tells what it does; whoever calls decides what to show."""

from typing import Protocol


class Watch(Protocol):
    def step(self, what: str, done: int, of: int | None) -> None:
        """This much of it is done. of: None where nobody knows how much there is."""

    def say(self, text: str) -> None:
        """Something that the user should read."""


class Silent:
    """For programs that do not show progress."""

    def step(self, what: str, done: int, of: int | None) -> None:
        pass

    def say(self, text: str) -> None:
        pass
