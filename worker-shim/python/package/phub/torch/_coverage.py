"""The parameters that each module's forward pass has to wait for, and the order in which modules are called.

A module that is called waits for the parameters that it holds itself. Some modules use the parameters of a child without
calling the child, as MultiheadAttention does with its `out_proj`. So for the parameters of a module that is not called, the
nearest called module above it waits. The first training pass, in which there is nothing to wait for, shows the modules that are
called. A module whose first call is in a later pass, or outside of training, waits for all parameters below it.
"""

from __future__ import annotations

import weakref
from typing import Dict, Iterable, List, MutableMapping, Sequence, Set, Tuple

import torch

Module = torch.nn.Module


class Coverage:
    """The parameters that each module waits for. Only parameters that the session has are among them."""

    def __init__(self, keys: Dict[int, str]) -> None:
        """Creates the coverage of a model whose calls are unknown. `keys`: the session's names of the parameters, by `id`."""
        self._keys = keys
        self._called: Dict[Module, None] = {}  # a set that keeps its order
        # All parameters below each module. This mapping may have modules of other models, too, and keeps no module alive.
        self._below: MutableMapping[Module, Tuple[str, ...]] = weakref.WeakKeyDictionary()
        self._learnt: MutableMapping[Module, Tuple[str, ...]] = weakref.WeakKeyDictionary()
        self.is_learning = True
        """Whether calls of modules are still recorded. `learn` ends the recording."""
        self.layers: List[List[str]] = []
        """The parameters of each layer, for which a module waits together, in the order of the forward pass; empty before
        `learn`."""

    def called(self, module: Module) -> Tuple[str, ...]:
        """Returns the parameters to wait for before the forward pass of this module. Until `learn`, also records the call."""
        if module.training and self.is_learning:
            self._called[module] = None
        learnt = self._learnt.get(module) if module.training else None
        return self._all_below(module) if learnt is None else learnt

    def _all_below(self, module: Module) -> Tuple[str, ...]:
        below = self._below.get(module)
        if below is None:
            keys = (self._keys.get(id(parameter)) for parameter in module.parameters())
            below = self._below[module] = tuple(key for key in keys if key is not None)
        return below

    def learn(self) -> List[str]:
        """Ends the recording. Returns the keys for which no module waits."""
        self.is_learning = False
        parents: Dict[Module, List[Module]] = {}
        modules: Dict[Module, None] = {}  # a set that keeps its order
        for called in self._called:
            for module in called.modules():
                modules[module] = None
        for module in modules:
            for child in module.children():
                parents.setdefault(child, []).append(module)
        covered: Dict[Module, Set[str]] = {module: set() for module in self._called}
        for module in modules:
            held = {self._keys[id(each)] for each in module._parameters.values() if id(each) in self._keys}
            if held:
                for coverer in self._coverers(module, parents):
                    covered[coverer] |= held
        places = {key: place for place, key in enumerate(self._keys.values())}
        for module, keys in covered.items():
            self._learnt[module] = tuple(sorted(keys, key=places.__getitem__))
        waited_for = set().union(*covered.values()) if covered else set()
        self._called.clear()
        uncovered = [key for key in self._keys.values() if key not in waited_for]
        self.layers = _once([uncovered, *(self._learnt[module] for module in covered)])
        return uncovered

    def _coverers(self, module: Module, parents: Dict[Module, List[Module]]) -> Set[Module]:
        """Returns the module itself if it is called, otherwise the nearest called modules above it."""
        found: Set[Module] = set()
        seen: Set[Module] = set()
        above = [module]
        while above:
            each = above.pop()
            if each in seen:
                continue
            seen.add(each)
            if each in self._called:
                found.add(each)
            else:
                above.extend(parents.get(each, []))
        return found


def _once(layers: Iterable[Sequence[str]]) -> List[List[str]]:
    """Returns the layers, each key only in its first layer, without layers that have no keys."""
    seen: Set[str] = set()
    found: List[List[str]] = []
    for layer in layers:
        new = [key for key in layer if key not in seen]
        seen.update(new)
        if new:
            found.append(new)
    return found
