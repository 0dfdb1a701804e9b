"""The client's state machine in randomized worlds: a model of the service, a channel that does all but garble."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.service_model import FORBIDDEN, Application, World

OBJECTS = [f"object-{n}" for n in range(8)] + [f"{FORBIDDEN}-{n}" for n in range(2)]


def live(world: World, steps: int) -> None:
    """Applications come and go, objects change, and whatever can fail does."""
    rng = world.rng
    world.faults = rng.choice((0.1, 0.3, 0.6))
    world.service.asks = rng.random() < 0.5
    for _ in range(steps):
        application = rng.choice(world.applications)
        match rng.randrange(30):
            case 0 | 1 | 2 | 3 | 4 | 5:
                application.want(rng.choice(OBJECTS))
            case 6 | 7 | 8:
                application.leave(rng.choice(OBJECTS))
            case 9 | 10 | 11 | 12 | 13:
                world.publish(rng.choice(OBJECTS))
            case 14:
                restart(world, application)
            case 15:
                if rng.random() < 0.3:
                    world.service.forget()
            case 16:
                world.service.identity += 1
                if rng.random() < 0.3:
                    world.service.forget_versions(1_800_000_000 + world.now)
            case 17:
                application.core.disconnected()
                world.step()
                application.core.connected(now=world.now)
            case 18:
                for handle in application.handles:
                    application.core.acknowledge(handle)
                application.handles = []
            case 19:
                world.repeat()
            case 20:
                if rng.random() < 0.5:
                    world.service.forget_registrations()
            case _:
                pass
        world.step()
        world.now += rng.choice((0.0, 0.01, 0.5, 2.0, 20.0))
        if rng.random() < 0.2:
            world.now = max(world.now, min(application.core.wake(now=world.now), world.now + 400))


def restart(world: World, application: Application) -> None:
    rng = world.rng
    world.clock_error = rng.choice((0.0, 0.0, -500_000.0))
    state = rng.choice((application.state, application.state, None, b"broken", (application.state or b"")[:-3]))
    application.restart(state)


@settings(max_examples=30)
@given(st.integers(0, 2**32))
def test_when_faults_stop_all_is_as_intended_and_the_latest_versions_are_known(seed: int) -> None:
    check_that_all_is_well_in_the_end(seed)


@pytest.mark.slow
@settings(max_examples=500)
@given(st.integers(0, 2**32))
def test_that_holds_in_hundreds_of_worlds(seed: int) -> None:
    check_that_all_is_well_in_the_end(seed)


def check_that_all_is_well_in_the_end(seed: int) -> None:
    world = World(seed)
    live(world, steps=150)
    world.settle()
    for application in world.applications:
        wanted = {name for name in application.wanted if FORBIDDEN not in name}
        assert application.wanted == wanted
        mine = application.core._registrations
        assert set(mine.intended) == wanted
        assert mine.client is not None
        assert set(world.service.clients[mine.client].registered()) == wanted
        assert not mine.outstanding
        assert mine.sync is None
        assert {name for name, registered in application.registered.items() if registered} >= wanted
        for name in wanted & world.truth.keys():
            assert application.has.get(name) == world.truth[name]


@pytest.mark.parametrize("seed", range(5))
def test_a_client_at_rest_says_no_more_than_its_heartbeat(seed: int) -> None:
    world = World(seed)
    live(world, steps=100)
    world.settle()
    before = world.sent
    world.settle(hours=6)
    assert world.sent - before <= 2 * 6 * 3600 / (1200 * 0.8) + 2


def test_the_same_seed_gives_the_same_run() -> None:
    sent = []
    for _ in range(2):
        world = World(7)
        live(world, steps=100)
        world.settle(hours=0.1)
        sent.append((world.sent, [application.told for application in world.applications]))
    assert sent[0] == sent[1]
