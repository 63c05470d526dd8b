"""Mechanisms from outside this package: classes in files and modules, and installed ones by entry point."""

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from asr.attention.layer import OwnParameterLayer, SelfAttentionLayer
from asr.attention.softmax import QueryKeyMechanism, SoftmaxMechanism
from asr.attention.spec import Spec
from asr.config import user_code
from asr.config.names import MECHANISM_GROUP, split_source
from asr.config.schema import accepted, settings
from asr.errors import UserError

Mechanism = type[QueryKeyMechanism] | type[OwnParameterLayer]
BASES = (QueryKeyMechanism, SoftmaxMechanism, OwnParameterLayer)
ABSTRACT = (QueryKeyMechanism, SelfAttentionLayer)  # classes whose methods a mechanism overrides
SIZES = ("model_dim", "heads", "head_dim")  # further arguments of an OwnParameterLayer
CALLED = ("__init__", "attend", "attend_finite", "attend_biased", "dense", "forward")  # by this program
PACKAGE = Path(__file__).parent.parent
NOT_ITS_OWN = (UserError, MemoryError, torch.OutOfMemoryError)  # what says enough, or ends in another way
KINDS = "SoftmaxMechanism, QueryKeyMechanism or OwnParameterLayer"


def load(name: str) -> str:
    """Load the code that the user's name for a mechanism needs, and return the name without a path.

    Example:
        >>> load("full"), load("./nystrom.py:Nystrom-32")  # doctest: +SKIP
        ('full', 'nystrom:Nystrom-32')
    """
    source, rest = split_source(name)
    if not source:
        return name
    module = user_code.load(source)
    if not split_source(f"{module}:{rest}")[0]:
        raise UserError(f"attention {name!r}: {module} is a mechanism of this program; rename the file")
    return f"{module}:{rest}"


def find(mechanism: str) -> Mechanism | None:
    """Return the class of a mechanism; None if the name is neither `module:Class` nor an entry point's.

    A module must have been loaded, by `load` or an import; the code of an entry point is loaded here, because
    it is installed.

    Raises:
        UserError: the module isn't loaded, or the class is missing or isn't a mechanism.
    """
    source, class_name = split_source(mechanism)
    if not source:
        return _installed(mechanism)
    module = user_code.module(source)
    if module is None:
        file = source if source.endswith(".py") else f"./{source.rpartition('.')[2]}.py"
        raise UserError(
            f"attention {mechanism!r} is code that runs only if you name it: give attention={file}:"
            f"{class_name}…, or --code {file} with any command; in Python, import it or call given_name"
        )
    # Not getattr, because a module's `__getattr__` may import more.
    cls = vars(module).get(class_name)
    if cls is None:
        known = [name for name, value in vars(module).items() if _is_mechanism(value)]
        raise UserError(
            f"attention {mechanism!r}: expected a class {class_name} in {_place(source)}, found "
            f"{', '.join(known) or 'no mechanism'}"
        )
    _check(cls, mechanism)
    user_code.use(source)
    return cls


@functools.cache
def entry_points() -> dict[str, metadata.EntryPoint]:
    """Return the installed mechanisms by name, without loading their code."""
    return {entry.name: entry for entry in metadata.entry_points(group=MECHANISM_GROUP)}


def digests(specs: list[Spec]) -> dict[str, str]:
    """Return the digests of the files of mechanisms from outside this package, by module."""
    modules = [split_source(spec.mechanism)[0] for spec in specs]
    modules += [entry_points()[spec.mechanism].module for spec in specs if spec.mechanism in entry_points()]
    return user_code.digests(modules)


@functools.cache
def _installed(mechanism: str) -> Mechanism | None:
    entry = entry_points().get(mechanism)
    if entry is None:
        return None
    user_code.load(entry.module)
    cls = getattr(user_code.module(entry.module), entry.attr, None)
    _check(cls, f"{mechanism} ({MECHANISM_GROUP}: {entry.value})")
    return cls


def _is_mechanism(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BASES) and value not in BASES


def _place(source: str) -> str:
    return str(getattr(user_code.module(source), "__file__", None) or source)


def _check(cls: object, name: str) -> None:
    """Raise UserError unless an object is a mechanism's class with a complete description."""
    what = f"attention {name!r}"
    if not _is_mechanism(cls):
        kind = f"a class of {cls.__mro__[1].__name__}" if isinstance(cls, type) else repr(cls)[:60]
        raise UserError(f"{what}: expected a subclass of {KINDS}, found {kind}")
    assert isinstance(cls, type)
    for method in ("forward",) if issubclass(cls, OwnParameterLayer) else ("attend", "dense"):
        if any(getattr(cls, method) is vars(base).get(method) for base in ABSTRACT):
            raise UserError(f"{what}: expected a method {method}, found none")
    for attribute in ("source", "time", "memory", "family"):
        value = getattr(cls, attribute, None)
        if not isinstance(value, str) or not value:
            raise UserError(f"{what}: expected text in the class attribute {attribute}, found {value!r}")
    schema = getattr(cls, "options", None)
    if not (isinstance(schema, type) and is_dataclass(schema)):
        raise UserError(f"{what}: expected a dataclass in the class attribute options, found {schema!r:.60}")
    _check_options(schema, what)
    taken = ["name", "backend", "dropout", *(SIZES if issubclass(cls, OwnParameterLayer) else ())]
    taken += ["options"] if fields(schema) else []
    try:
        inspect.signature(cls).bind(**dict.fromkeys(taken))
    except TypeError as error:
        raise UserError(f"{what}: {cls.__name__}.__init__: {error}; it takes {', '.join(taken)}") from None
    if "guarded" not in vars(cls):
        for method in CALLED:
            if hasattr(cls, method):
                setattr(cls, method, _guarded(getattr(cls, method)))
        cls.guarded = True  # type: ignore[attr-defined]


def _guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method of the user's class: failures and wrong outputs become UserErrors."""

    @functools.wraps(method)
    def call(self: Any, *given: Any, **named: Any) -> Any:
        if torch.compiler.is_compiling():
            return method(self, *given, **named)
        watched = getattr(self, "watched", None) is not None
        if watched:  # a tensor that is used elsewhere, too, has a gradient that isn't this method's alone
            views = {id(x): x.view_as(x) for x in given if isinstance(x, Tensor)}
            given = tuple(views.get(id(x), x) for x in given)
        try:
            output = method(self, *given, **named)
        except NOT_ITS_OWN:
            raise
        except (Exception, SystemExit) as error:
            last = user_code.last_file(error)
            # The caller's wrong argument, or how activation checkpointing ends a recomputation.
            if last and (PACKAGE in Path(last).parents or last == torch.utils.checkpoint.__file__):
                raise
            name = named.get("name") or getattr(self, "name", type(self).__name__)
            raise UserError(f"attention {name!r}: {user_code.failure(error)}") from error
        inputs = [x for x in given if isinstance(x, Tensor) and x.is_floating_point()]
        if method.__name__ != "__init__" and inputs:
            _check_output(self, method, inputs, output)
            if watched:
                _watch_gradients(self, method, inputs, output)
        return output

    return call


@contextmanager
def backward_pass() -> Iterator[None]:
    """Turn failures of the user's own code in a backward pass, which no method guards, into UserErrors."""
    try:
        yield
    except NOT_ITS_OWN:
        raise
    except (Exception, SystemExit) as error:
        if not user_code.passed(error):
            raise
        raise UserError(f"backward pass: {user_code.failure(error)}") from error


def nan_again(model: nn.Module, run: Callable[[], object]) -> str:
    """Return which of the user's mechanisms turns finite input into NaN when `run` is repeated, or "".

    Outputs are usually checked only once, because that takes time; call this if a model's output has NaN.

    Args:
        model: model, with or without such mechanisms.
        run: computation that gave NaN.
    """
    guarded = [x for x in model.modules() if getattr(x, "guarded", False)]
    if not guarded:
        return ""
    for mechanism in guarded:
        mechanism.returned = False  # type: ignore[assignment]
    try:
        with torch.no_grad():
            run()
    except UserError as error:
        return error.line
    return ""


def bad_gradient_again(model: nn.Module, loss: Callable[[], Tensor]) -> str:
    """Return which of the user's own mechanisms turns finite gradients into infinite ones or NaN, or "".

    Args:
        model: the model, which may have none of them.
        loss: computes again the loss, a scalar, whose gradients weren't finite.
    """
    guarded = [x for x in model.modules() if getattr(x, "guarded", False)]
    if not guarded:
        return ""
    hooks: list[RemovableHandle] = []
    for mechanism in guarded:
        mechanism.watched = hooks  # type: ignore[assignment]
    try:
        # Not backward(), which would call DDP's hooks of the parameters.
        torch.autograd.grad(loss(), [x for x in model.parameters() if x.requires_grad], allow_unused=True)
    except UserError as error:
        return error.line
    finally:
        for mechanism in guarded:
            mechanism.watched = None  # type: ignore[assignment]
        for hook in hooks:
            hook.remove()
    return ""


def _check_output(mechanism: Any, method: Callable[..., Any], inputs: list[Tensor], output: Any) -> None:
    """Raise UserError unless the output is a tensor of the right shape, and for NaN in the first output."""
    first, last = inputs[0].shape, inputs[-1].shape
    shape = first if len(inputs) == 1 else (*first[:3], last[2 if method.__name__ == "dense" else 3])
    problem = ""
    if not isinstance(output, Tensor):
        problem = f"{output!r:.60}"
    elif output.shape != shape:
        problem = str(list(output.shape))
    elif not getattr(mechanism, "returned", False):
        # Only once, because it takes time, and comparisons time the calls.
        mechanism.returned = True
        if output.isnan().any() and not any(x.isnan().any() for x in inputs):
            problem = "NaN"
    if problem:
        raise UserError(
            f"attention {mechanism.name!r}: expected a tensor {list(shape)} from {method.__name__}, "
            f"found {problem} ({_line(method)})"
        )


def _watch_gradients(
    mechanism: Any, method: Callable[..., Any], inputs: list[Tensor], output: Tensor
) -> None:
    """Let the backward pass raise UserError if a finite gradient of the output becomes infinite or NaN."""
    given: list[bool] = []

    def note(gradient: Tensor) -> None:
        given.append(bool(gradient.isfinite().all()))

    def check(gradient: Tensor) -> None:
        if given == [True] and not gradient.isfinite().all():
            raise UserError(
                f"attention {mechanism.name!r}: expected finite gradients from the backward pass of "
                f"{method.__name__}, found {'NaN' if gradient.isnan().any() else 'inf'} ({_line(method)})"
            )

    if output.requires_grad:
        mechanism.watched.append(output.register_hook(note))
        sources = [x for x in (*inputs, *mechanism.parameters()) if x.requires_grad]
        mechanism.watched += [x.register_hook(check) for x in sources]


def _line(method: Callable[..., Any]) -> str:
    code = inspect.unwrap(method).__code__
    return f"{Path(code.co_filename).name}, line {code.co_firstlineno}"


def _check_options(schema: type, what: str) -> None:
    """Raise UserError for options that a name couldn't set."""
    try:
        known = list(settings(schema()))
    except (Exception, SystemExit) as error:  # from the user's code, or a field without default
        raise UserError(f"{what}: {schema.__name__}(): {user_code.failure(error)}") from error
    names = [x.key for x in known]
    if sum(bool(x.letter) for x in known) > 1:
        raise UserError(f"{what}: {schema.__name__}: expected one option with a letter, found several")
    for x in known:
        where = f"{what}: {schema.__name__}, option {x.key!r}"
        if "range" not in x.field.metadata:
            raise UserError(f"{where}: expected option(…), found {x.value!r:.60}")
        if not re.fullmatch(r"[a-z]\w*", x.key, re.ASCII):
            raise UserError(f"{where}: expected a name of small letters")
        if x.kind not in (int, str, bool, int | None) or (x.letter and x.kind is not int):
            raise UserError(f"{where}: expected {'int' if x.letter else 'int, str or bool'}, found {x.kind}")
        if x.value is not None and (expected := accepted(x.field).expected(x.value)):
            raise UserError(f"{where}: default {x.value!r}, expected {expected}")
        for only, _ in x.conditions:
            if only.option not in names:
                raise UserError(f"{where}: only={only.option!r}, no option of this class")
