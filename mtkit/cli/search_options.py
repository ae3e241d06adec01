"""The recipe's section `search` as command-line options: one a setting, made from the section's own fields.

So an option has the name, the description with its source, and the range that the recipe's setting has, and a new
setting is an option from birth.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer
from pydantic import ValidationError

from mtkit.errors import UsageError
from mtkit.recipe_errors import kind_in_words
from mtkit.sections.base import Section
from mtkit.sections.search import Beam, Greedy, Lines, Rules, Sampling, Search

if TYPE_CHECKING:
    from mtkit.recipe import Recipe

_METHODS: dict[str, type[Section]] = {"greedy": Greedy, "beam": Beam, "sampling": Sampling}
_PARTS: dict[str, type[Section]] = {"rules": Rules, "lines": Lines}

Function = TypeVar("Function", bound=Callable[..., None])


@dataclass(frozen=True, slots=True)
class SearchOption:
    """A setting as an option. `part` is "rules" or "lines", or "" for one of `methods` alone."""

    name: str
    part: str
    methods: tuple[str, ...]
    type: Any
    description: str
    accepts: str

    @property
    def flag(self) -> str:
        """As it is typed: --beam-size."""
        return "--" + self.name.replace("_", "-")

    @property
    def help(self) -> str:
        """Description with source, place in the recipe, range."""
        path = ".".join(filter(None, ("search", self.part, self.name)))
        return f"{self.description} [{path}: {self.accepts}]"


@lru_cache
def search_options() -> Mapping[str, SearchOption]:
    """Every setting of the section, by name."""
    text = "Search method; where it is not the recipe's, the settings of the new one start from their defaults"
    methods, accepts = Literal["greedy", "beam", "sampling"], "greedy, beam or sampling"
    options = {"method": SearchOption("method", "", tuple(_METHODS), methods, text, accepts)}
    for method, section in _METHODS.items():
        properties = section.model_json_schema()["properties"]
        for name, field in section.model_fields.items():
            if name in ("method", *_PARTS):
                continue
            text = f"With {method}: {field.description}"
            owners: tuple[str, ...] = (method,)
            if name in options:
                text = f"{options[name].description}. {text}"
                owners = (*options[name].methods, method)
            accepts = kind_in_words(properties[name])
            options[name] = SearchOption(name, "", owners, field.annotation, text, accepts)
    for part, section in _PARTS.items():
        properties = section.model_json_schema()["properties"]
        for name, field in section.model_fields.items():
            assert name not in options, "a setting's name is an option, so it must be one setting's alone"
            text = str(field.description)
            accepts = kind_in_words(properties[name])
            options[name] = SearchOption(name, part, tuple(_METHODS), field.annotation, text, accepts)
    return options


def with_search_options(function: Function) -> Function:
    """Give a command an option for every setting of `search`, in place of its keyword arguments **settings.

    The function receives None for those that were not given; see `given`. Changes the function's signature only.
    """
    signature = inspect.signature(function)
    own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    made = []
    for option in search_options().values():
        flags = f"{option.flag}/--no-{option.flag[2:]}" if option.type is bool else option.flag
        info = typer.Option(flags, help=option.help, show_default=False)
        made.append(
            inspect.Parameter(
                option.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[option.type | None, info],
            )
        )
    changed: Any = function
    changed.__signature__ = signature.replace(parameters=[*own, *made])
    changed.__annotations__ = {each.name: each.annotation for each in (*own, *made)} | {"return": None}
    return function


def given(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that were given on the command line."""
    return {name: value for name, value in settings.items() if value is not None}


def merged(recipe: "Recipe", settings: Mapping[str, Any], origin: str) -> Search:
    """The recipe's search with `settings` in place of its own; `origin` names the recipe in errors.

    Raises UsageError for a setting of another method, a value out of range, or values that do not fit together.
    """
    from mtkit.recipe import Recipe

    options = search_options()
    method = settings.get("method", recipe.search.method)
    where = "from --method" if "method" in settings else f"in {origin}"
    for name, value in settings.items():
        if method not in options[name].methods:
            owners = " or ".join(options[name].methods)
            raise UsageError(
                f"{_typed(options[name], value)} is an option of {owners}, and the method is {method} ({where})",
                f"add --method {options[name].methods[0]}, or leave {options[name].flag} out",
            )
    values = recipe.search.model_dump()
    if method != recipe.search.method:
        values = {"method": method, "rules": values["rules"], "lines": values["lines"]}
    for name, value in settings.items():
        part = options[name].part
        (values[part] if part else values)[name] = value
    try:
        return Recipe.model_validate(recipe.model_dump() | {"search": values}).search
    except ValidationError as error:
        problems = [_problem(options, str(each["loc"][-1:] and each["loc"][-1]), each) for each in error.errors()]
        typed = " ".join(_typed(options[name], value) for name, value in settings.items())
        raise UsageError("; ".join(problems), f"given: {typed}; all other settings come from {origin}") from None


def _problem(options: Mapping[str, SearchOption], name: str, error: Mapping[str, Any]) -> str:
    """One error of pydantic in terms of options."""
    if name in options and error["type"] != "value_error":
        return f"{_typed(options[name], error['input'])}: expected {options[name].accepts}"
    return str(error["msg"]).removeprefix("Value error, ")


def _typed(option: SearchOption, value: Any) -> str:
    """The option as it was typed."""
    if option.type is bool:
        return option.flag if value else f"--no-{option.flag[2:]}"
    return f"{option.flag} {value}"
