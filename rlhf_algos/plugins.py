"""Settings that name something exchangeable: a name, a dict, a dotted path, a class or an instance.

`corrector="tis"`, `corrector={"type": "tis", "high": 3.0}`, `router_replay="my_package.my_module.MyReplay"`: one
language for every part that a user can bring along. A dotted path imports a module that the user names, as an import
statement would; nothing is unpickled and nothing is evaluated.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any, Generic, TypeVar

Plugin = TypeVar("Plugin")


@dataclass(frozen=True)
class PluginOption(Generic[Plugin]):
    """Reads the values of one option.

    Attributes:
        name: of the option, for errors.
        base: what a plug-in is an instance of; public in the package above its module.
        names: short names, and what each means; "none" is what None means.
        needed_in: whose processes import a dotted path, for errors.
        takes_instances: whether an instance may be given, for errors.
    """

    name: str
    base: type[Plugin]
    names: Mapping[str, type[Plugin]]
    needed_in: str = "every process that trains"
    takes_instances: bool = True

    def make(self, spec: Any) -> Plugin:
        """The plug-in that a setting describes.

        Args:
            spec: an instance (returned as it is), a short name, the dotted path "package.module.ClassName" of a
                subclass of `base`, a class, None (the same as "none"), or a mapping {"type": name, path or class,
                option: value, ...}.

        Raises:
            ImportError: the module of a dotted path can't be imported, or has no such class.
            TypeError: the setting, or what it names, is of the wrong type; an option has the wrong type.
            ValueError: unknown name, no "type", unknown or missing option, or a value out of range.
        """
        return spec if isinstance(spec, self.base) else self.maker(spec)()

    def maker(self, spec: Any) -> Callable[[], Plugin]:
        """What makes the plug-in that a setting describes, a new one each time; nothing is made here.

        Args:
            spec: as for `make`, but no instance.

        Raises:
            ImportError, TypeError, ValueError: as `make`, but for values of options, which only the class looks at.
        """
        if spec is None and "none" in self.names:
            return self.names["none"]
        if isinstance(spec, Mapping):
            options = dict(spec)
            if "type" not in options:
                raise ValueError(f'{self.name}={options!r} has no "type". Give {{"type": name, option: value, ...}}.')
            return self._checked(self._class(options.pop("type")), options)
        return self._checked(self._class(spec), {})

    def _class(self, source: Any) -> type[Plugin]:
        """The class that a short name, a dotted path or a class means."""
        if not isinstance(source, str | type):
            instance = f"a {self.base.__name__}, " if self.takes_instances else ""
            none = "None, " if "none" in self.names else ""
            raise TypeError(
                f"{self.name}={source!r} is of type {type(source).__name__}. Give {instance}a name, a dotted path, a "
                f'class, {none}or {{"type": name, option: value, ...}}.'
            )
        if isinstance(source, str) and source in self.names:
            return self.names[source]
        found = self._imported(source) if isinstance(source, str) else source
        if not isinstance(found, type) or not issubclass(found, self.base):
            package = self.base.__module__.rpartition(".")[0]
            raise TypeError(
                f"{self.name}={source!r} is {found!r}, which is not a subclass of {package}.{self.base.__name__}."
            )
        if inspect.isabstract(found):
            missing = ", ".join(sorted(vars(found)["__abstractmethods__"]))
            raise TypeError(f"{self.name}={source!r} is abstract: use a subclass of it that has {missing}().")
        return found

    def _imported(self, path: str) -> Any:
        """What a dotted path names."""
        module_name, _, name = path.rpartition(".")
        if not module_name or not all(part.isidentifier() for part in path.split(".")):
            raise ValueError(
                f"{self.name}={path!r} is unknown{_did_you_mean(path, self.names)}. Names: {', '.join(self.names)}. "
                'A class of your own is named by its dotted path, "package.module.ClassName".'
            )
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            raise ImportError(
                f"{self.name}={path!r} can't be imported: {error}. Install its package, or put its folder on "
                f"PYTHONPATH, for {self.needed_in}."
            ) from error
        if not hasattr(module, name):
            classes = [key for key, value in vars(module).items() if isinstance(value, type)]
            raise ImportError(f"{self.name}={path!r}: {module_name} has no {name!r}{_did_you_mean(name, classes)}.")
        return getattr(module, name)

    def _checked(self, cls: type[Plugin], options: dict[str, Any]) -> Callable[[], Plugin]:
        """The class with options, after a check of their names."""
        parameters = inspect.signature(cls).parameters.values()
        named = {p.name: p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        for option in options:
            if option not in named and not takes_any:
                valid = f"Options: {', '.join(named)}." if named else "It has no options."
                raise ValueError(
                    f"{cls.__name__} has no option {option!r}{_did_you_mean(str(option), named)}; got {options!r}. "
                    f"{valid}"
                )
        missing = [name for name, p in named.items() if p.default is p.empty and name not in options]
        if missing:
            raise ValueError(
                f"{cls.__name__} needs the option(s) {', '.join(missing)}: give an instance, or a dict that has them."
            )
        return partial(cls, **options)


def plugin_settings(plugin: Any) -> dict[str, Any]:
    """The dict from which `PluginOption.make` builds an equal plug-in; JSON can hold it.

    Returns:
        `{"type": name, option: value, ...}`; the type is the class's `registered_name`, which is not inherited, else
        "package.module.ClassName".

    Raises:
        TypeError: the class has options and is no dataclass, so they can't be found.
    """
    cls = type(plugin)
    # An inherited short name would build the parent.
    name = vars(cls).get("registered_name") or f"{cls.__module__}.{cls.__qualname__}"
    if is_dataclass(plugin):
        return {"type": name} | {field.name: getattr(plugin, field.name) for field in fields(plugin) if field.init}
    options = list(inspect.signature(cls).parameters)
    if options:
        raise TypeError(
            f"{cls.__name__} takes {', '.join(options)} but is no dataclass, so settings() can't find their "
            "values. Make it a frozen dataclass, or override settings()."
        )
    return {"type": name}


def as_text(value: Any) -> str:
    """A setting, short; of a plug-in without the options that have their default.

    >>> as_text("tis"), as_text({"type": "tis", "high": 3.0}), as_text([1, None])
    ('tis', 'tis(high=3.0)', '[1, null]')
    """
    if isinstance(value, str):
        return value
    if hasattr(value, "settings") and not isinstance(value, type):
        parameters = inspect.signature(type(value)).parameters
        defaults = {name: parameter.default for name, parameter in parameters.items()}
        return as_text({key: option for key, option in value.settings().items() if defaults.get(key, ...) != option})
    if isinstance(value, Mapping) and isinstance(value.get("type"), str):
        options = ", ".join(f"{key}={as_text(option)}" for key, option in value.items() if key != "type")
        return f"{value['type']}({options})" if options else value["type"]
    return json.dumps(value, default=str)


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    """The closest known word in brackets, or nothing."""
    by_lower = {name.lower(): name for name in known}
    matches = difflib.get_close_matches(word.lower(), by_lower, n=1)
    return f" (did you mean {by_lower[matches[0]]!r}?)" if matches else ""
