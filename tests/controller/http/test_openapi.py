"""`/openapi.json` is valid OpenAPI 3.1, and true: requests that it permits and forbids are answered as it says."""

import itertools
from collections.abc import Callable
from typing import Any, cast

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance

from holdfast.controller.http.auth import Auth
from holdfast.controller.http.facade import Facade
from holdfast.controller.http.routes import create_app
from tests.controller.support.asking import TOKEN
from tests.controller.support.fake_facade import FakeFacade
from tests.controller.support.fake_spans import traced

QUIETLY = settings(
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
KNOWN = {"id": ["job-1", "demo"], "name": ["node0", "node1"], "incident": ["i1"], "kind": ["worker-hang"]}
"""Made-up names of these would be answered with 404 only."""


class Scene:
    """The facade of the moment, behind one application: to make that takes longer than a request."""

    def __init__(self) -> None:
        self.now = FakeFacade()
        self._spans = traced(self.now)

    def enter(self, facade: FakeFacade) -> None:
        facade.traced = self._spans
        self.now = facade

    def __getattr__(self, name: str) -> Any:
        return getattr(self.now, name)


def training() -> FakeFacade:
    facade = FakeFacade()
    facade.warm_up(20)
    facade.fault(rank=3)
    facade.tick(0.5)
    return facade


def over() -> FakeFacade:
    facade = training()
    facade.job_state, facade.ended_at = "finished", facade.now
    return facade


def none_yet() -> FakeFacade:
    facade = FakeFacade()
    facade.job_state = None
    return facade


def several() -> FakeFacade:
    facade = training()
    facade.add_job("second").warm_up(3)
    return facade


STATES: list[Callable[[], FakeFacade]] = [training, over, none_yet, several]
EXAMPLES = {GenerationMode.POSITIVE: len(STATES), GenerationMode.NEGATIVE: 3}
"""Requests for each operation: one in each state, and what is refused is so in all of them."""
UNSAYABLE = {
    "POST /api/v1/jobs": "the product of nodes and workers has a limit, and faults have a grammar",
    "POST /api/v1/jobs/{id}/inject": "faults have a grammar",
    "POST /api/v1/inject": "faults have a grammar",
    "GET /api/v1/jobs/{id}/spans": "ranks have a grammar, and a limit to their number",
    "GET /api/v1/jobs/{id}/spans/predicted": "ranks have a grammar, and a limit to their number",
    "GET /api/v1/spans/predicted": "ranks have a grammar, and a limit to their number",
    "GET /api/v1/spans": "ranks have a grammar, and a limit to their number",
    "GET /api/v1/jobs/{id}/ranks": "columns are names of its answer",
    "GET /api/v1/jobs/{id}/logs": "ranks have a grammar",
    "GET /api/v1/job/logs": "ranks have a grammar",
    "GET /api/v1/ranks": "columns are names of its answer",
}
"""Operations that refuse some requests which their schema permits, and what the schema cannot say."""
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
SCENE = Scene()
APP = create_app(cast(Facade, SCENE), Auth(token=TOKEN))
APP.state.streams.close()  # event streams end at once: what is read of them is their head
SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", APP, headers=HEADERS)
SCHEMA.config.generation.update(allow_extra_parameters=False)  # unknown ones are ignored, as on the web
OPERATIONS = {found.ok().label: found.ok() for found in SCHEMA.get_all_operations()}


def test_the_document_is_valid() -> None:
    document = APP.openapi()
    assert document["openapi"].startswith("3.1.")
    assert [str(error) for error in OpenAPIV31SpecValidator(document).iter_errors()] == []


@pytest.mark.parametrize(
    ("label", "mode"),
    [
        (label, mode)
        for label, operation in OPERATIONS.items()
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
        if mode.is_positive or operation.body or list(operation.iter_parameters())
    ],
)
def test_answers_are_what_the_document_says(label: str, mode: GenerationMode) -> None:
    operation = OPERATIONS[label]
    states = itertools.cycle(STATES)

    @settings(QUIETLY, max_examples=EXAMPLES[mode])
    @given(case=operation.as_strategy(mode), data=st.data())
    def ask(case: Any, data: st.DataObject) -> None:
        if mode.is_positive:
            for name in case.path_parameters or {}:
                case.path_parameters[name] = data.draw(
                    st.sampled_from(KNOWN[name]) | st.just(case.path_parameters[name])
                )
        # That each operation needs the token, test_access.py shows, without a second request for each of these.
        left_out = [ignored_auth, *([positive_data_acceptance] if label in UNSAYABLE else [])]
        SCENE.enter(next(states)())
        case.call_and_validate(headers=HEADERS, excluded_checks=left_out)

    ask()
