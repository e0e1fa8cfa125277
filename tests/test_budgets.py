"""The budget icicle draws what really ran: against a sum on paper, the ledger, and the journal."""

import threading
from dataclasses import replace

import ipywidgets
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from pages import Page, status

import durakit as dk
from durakit.lab.budgets import nested as lab
from durakit.lab.budgets.explorer import BudgetExplorer, BudgetModel
from durakit.lab.budgets.icicle import plot_icicle
from durakit.lab.budgets.nested import Bar, Budgets, SlowMail
from durakit.lab.plots import WIDGET_VIEW
from durakit.mail import Mailbox

# Each example is a real run.
laws = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])

STATIC, INHERITED = Budgets(inherited=False), Budgets()


@pytest.fixture(scope="module")
def both():
    """The two runs of the lesson's first picture."""
    return STATIC.run(), INHERITED.run()


def on_paper(b):
    """What must happen, by adding up whole seconds: an account of it without the runtime.

    Returns each call as (begins, has, ends, lands), the moment of the end, and what fired.
    """
    now, calls = 0, []
    for turn in range(1, b.turns + 1):
        if not b.inherited and now >= b.session:
            return calls, now, ("session", "session")
        turn_ends = now + b.turn
        name = ("turn", f"turn {turn}")
        if b.inherited and b.session <= turn_ends:
            turn_ends, name = b.session, ("session", "session")
        if b.inherited and now >= turn_ends:
            return calls, now, name
        now += b.think
        for _ in range(b.calls):
            if now >= turn_ends:
                return calls, now, name
            has, cut = b.call, ("call", "call")
            if b.inherited and turn_ends - now <= b.call:
                has, cut = turn_ends - now, name
            ends = now + min(has, b.service)
            calls.append((now, has, ends, now + b.service))
            now = ends
            if has < b.service:
                return calls, now, cut
    return calls, now, None


@laws
@given(
    numbers=st.tuples(
        st.integers(5, 70), st.integers(3, 40), st.integers(1, 20), st.integers(1, 20),
        st.integers(1, 9), st.integers(1, 3), st.integers(1, 3),
    ),
    inherited=st.booleans(),
)  # fmt: skip
@example(numbers=(5, 3, 1, 2, 2, 1, 1), inherited=True)  # the turn and the call end together
def test_every_bar_is_where_a_sum_on_paper_puts_it(numbers, inherited):
    """Begin, what it had, end, the landing of its mail, the end of the run, and who fired."""
    scenario = Budgets(*numbers, inherited=inherited)
    trace = scenario.run()
    calls, ended, fired = on_paper(scenario)
    assert [(c.begins, c.available, c.ends, c.lands) for c in trace.calls] == calls
    assert trace.ended == ended
    got = None if trace.fired is None else (trace.fired.level, trace.fired.name)
    assert got == fired


def test_three_growing_static_limits_overrun_the_session(both):
    """60 > 30 > 10: the third call begins at 25 and ends at 35, and the session ends at 70."""
    static, inherited = both
    third = static.calls[2]
    assert (third.begins, third.ends) == (25, 35)
    assert (static.ended, static.status, static.fired) == (70, "completed", None)
    assert [(bar.name, bar.over) for bar in static.bars if bar.over] == [
        ("session", 10), ("turn 1", 5), ("turn 2", 5),
    ]  # fmt: skip
    assert all(bar.over == 0 for bar in inherited.bars)


def test_the_inherited_call_is_cut_by_its_turn_and_still_lands(both):
    """It had 5 s, the turn fired at 30, its outcome is unknown, and its mail came at 35."""
    _, trace = both
    cut = trace.calls[-1]
    assert (cut.limit, cut.available, cut.ends, cut.lands, cut.known) == (10, 5, 30, 35, False)
    assert (trace.fired.level, trace.fired.name, trace.fired.at) == ("turn", "turn 1", 30)
    assert trace.late == (cut,)
    assert (trace.status, trace.mails) == ("needs_decision", 3)


def test_the_stars_are_the_ledgers(tmp_path, both):
    """Read from the mailbox's own file, after everything else is closed."""
    for number, (scenario, seen) in enumerate(zip((STATIC, INHERITED), both, strict=True)):
        trace = scenario.run(tmp_path / str(number))
        assert trace == seen
        box = Mailbox(tmp_path / str(number), clock=dk.ManualClock())
        box.clock.advance(1000)
        start = dk.ManualClock.START
        ledger = {row["key"]: round(row["time"] - start, 3) for row in box.effects()}
        box.close()
        assert ledger == {bar.name: bar.lands for bar in trace.calls}


@pytest.mark.parametrize(
    ("changed", "level"),
    [({"service": 12.0}, "call"), ({}, "turn"), ({"session": 28.0}, "session")],
)
def test_the_level_is_the_one_that_the_runtime_names_when_it_leaves_a_tool(
    tmp_path, changed, level
):
    """The same limits around a tool that does not listen: the error names the same level."""
    scenario = replace(INHERITED, **changed)
    clock = dk.ManualClock()
    box = Mailbox(tmp_path, profile="opaque", clock=clock)

    def send_mail(call, subject):
        return SlowMail(box, scenario.service).send("a@x.org", subject, "hello", key=call.key)

    deaf = dk.tool(send_mail, effect="opaque", timeout=scenario.call)
    with dk.Runtime(":memory:", clock=clock, world=box) as rt:
        run = rt.run(scenario.workflow(clock, deaf), id="s", deadline=scenario.session)
        (attempt,) = run.history().query("kind == 'attempt'")["payload"]
        trace = scenario.trace(run, box)
    box.close()
    assert attempt["error"]["message"].startswith(f"deadline of the {level} ")
    assert trace.fired.level == scenario.run().fired.level == level


def test_nothing_fires_where_there_is_time_enough():
    """Six mails, nothing late, nothing to mark."""
    trace = Budgets(service=6).run()
    assert (trace.status, trace.ended, trace.fired, trace.late) == ("completed", 46, None, ())
    assert "No limit fired" in trace.words()
    assert {row["how it ended"] for row in trace.rows()} == {"✓ in time"}


def test_a_limit_between_two_calls_leaves_nothing_unknown():
    """The next call is not begun, and the run fails by the turn's name."""
    trace = Budgets(turn=25).run()
    assert (trace.status, len(trace.calls), trace.mails) == ("failed", 2, 2)
    assert trace.fired.words == (
        "the turn 1 limit fired at 25 s, between two calls: 'send_mail' was not begun"
    )
    assert all(bar.known for bar in trace.calls)


@pytest.mark.parametrize("field", ["session", "turn", "call", "service", "think"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), True, "10", None])
def test_a_time_that_is_none_is_refused_by_name(field, value):
    """The field says which number to change."""
    with pytest.raises(dk.InvalidField) as caught:
        Budgets(**{field: value})
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"turns": 0}, "turns"),
        ({"calls": 1.5}, "calls"),
        ({"turns": 4, "calls": 4}, "calls"),
        ({"inherited": "no"}, "inherited"),
    ],
)
def test_too_many_or_too_few_pieces_are_refused(given, field):
    """A picture has room for twelve calls."""
    with pytest.raises(dk.InvalidField) as caught:
        Budgets(**given)
    assert caught.value.field == field


# -- the service that takes its time ---------------------------------------------------------------


@pytest.mark.parametrize(("timeout", "comes"), [(10.0, True), (None, True), (9.999, False)])
def test_the_slow_service_acts_at_its_end_whoever_still_waits(tmp_path, timeout, comes):
    """Ten seconds: a reply to who waits as long, and the mail at second ten for everybody."""
    clock = dk.ManualClock()
    box = Mailbox(tmp_path, clock=clock)
    mail = SlowMail(box, 10.0)
    began = clock.monotonic()
    if comes:
        assert mail.send("a@x.org", "s", "b", key="k", timeout=timeout) == {"id": "email-1"}
    else:
        with pytest.raises(TimeoutError):
            mail.send("a@x.org", "s", "b", key="k", timeout=timeout)
    assert clock.monotonic() - began == pytest.approx(10.0 if comes else timeout, abs=1e-5)
    clock.advance(5.0)
    (effect,) = box.effects()
    assert effect["time"] - dk.ManualClock.START == pytest.approx(10.0, abs=1e-5)
    assert mail.find("k") == {"id": "email-1"}
    box.close()


def test_an_address_may_have_a_time_of_its_own(tmp_path):
    """One slow recipient slows nobody else."""
    clock = dk.ManualClock()
    mail = SlowMail(Mailbox(tmp_path, clock=clock), 1.0)
    mail.slow["b@x.org"] = 7.0
    took = []
    for to in ("a@x.org", "b@x.org", "a@x.org"):
        began = clock.monotonic()
        mail.send(to, "s", "b")
        took.append(clock.monotonic() - began)
    assert took == [1.0, 7.0, 1.0]
    mail.mailbox.close()


# -- the picture -----------------------------------------------------------------------------------


def drawn(plot):
    """Every piece of text in a figure."""
    axes = plot.figure().axes[0]
    return [text.get_text() for text in (*axes.texts, *axes.get_yticklabels(), axes.xaxis.label)]


def outlines(plot):
    """(begin, length) of the bars that are outlines."""
    bars = plot.figure().axes[0].patches
    return [(bar.get_x(), bar.get_width()) for bar in bars if not bar.get_fill()]


def test_the_bars_have_the_tables_numbers(both):
    """Each outline begins and is as long as its row says, in the same order."""
    plot = plot_icicle(*both)
    rows = plot.table()
    wanted = list(zip(rows["begins"].astype(float), rows["own limit"].astype(float), strict=True))
    assert outlines(plot) == wanted
    assert len(wanted) == sum(len(trace.bars) for trace in both)


def test_what_is_wrong_is_told_by_word_and_shape_and_not_by_colour_alone(both):
    """Too long is hatched and says so; what fired has a word; a late mail is named at its star."""
    plot = plot_icicle(*both)
    words = drawn(plot)
    assert "70 of 60 s  ✗ 10 s too long" in words
    assert "5 of 5 s  ✗ turn 1 limit fired: unknown" in words
    assert "mail 1.3 lands late, at 35 s" in words
    assert "mail 2.3 lands late, at 70 s" in words
    hatched = [bar for bar in plot.figure().axes[0].patches if bar.get_hatch()]
    assert [(bar.get_x(), bar.get_width()) for bar in hatched] == [(60, 10), (30, 5), (65, 5)]


def test_the_stars_stand_where_the_mails_landed(both):
    """One star per mail, the late ones larger."""
    axes = plot_icicle(*both).figure().axes[0]
    stars = [line for line in axes.lines if line.get_marker() == "*"]
    lands = [(bar.lands, bar in trace.late) for trace in both for bar in trace.calls]
    assert [(line.get_xdata()[0], line.get_markersize() > 10) for line in stars] == lands


@pytest.mark.parametrize(
    "budgets",
    [
        Budgets(),
        Budgets(inherited=False),
        Budgets(session=5, turn=60, call=40, service=15, inherited=False),
        Budgets(session=20, turn=60, call=40, service=12),
        Budgets(session=2, turn=5, call=1, service=40),
    ],
    ids=repr,
)
def test_no_line_bar_or_star_runs_through_words(budgets):
    """Words stand in a column of their own, and every one is within the picture."""
    figure = plot_icicle(budgets.run()).figure()
    FigureCanvasAgg(figure).draw()
    axes = figure.axes[0]
    words = [text.get_window_extent() for text in axes.texts if text.get_text()]
    drawn = [part.get_window_extent() for part in (*axes.patches, *axes.lines)]
    assert len(words) > len(budgets.run().bars)
    for at, box in enumerate(words):
        # One pixel is the thickness of a line.
        assert not [part for part in drawn if overlap(box, part) > 1]
        assert not [other for other in words[at + 1 :] if overlap(box, other) > 1]
        assert box.x1 <= figure.bbox.x1


def overlap(one, other):
    """Pixels by which two boxes share both their widths and their heights; 0 where they do not."""
    wide = min(one.x1, other.x1) - max(one.x0, other.x0)
    high = min(one.y1, other.y1) - max(one.y0, other.y0)
    return max(0.0, min(wide, high)) if wide > 0 and high > 0 else 0.0


def test_many_late_mails_are_counted_and_the_first_is_dated():
    """There is room for one line."""
    words = drawn(plot_icicle(Budgets(5, 60, 40, 15, inherited=False).run()))
    assert "3 mails land late, from 20 s on" in words


def test_the_words_beside_the_picture_tell_all_of_it(both):
    """Who cannot see it reads the limits, what fired and when, what landed late."""
    plot = plot_icicle(*both)
    for part in (
        "Static limits: session 60 s, turn 30 s, call 10 s",
        "the session went 10 s past its own",
        "The turn 1 limit fired at 30 s, during mail 1.3, whose outcome is unknown",
        "mail 1.3 landed late, at 35 s",
        "The run is needs_decision after 30 s, mails in the ledger: 3",
    ):
        assert part in plot.alt
    bundle, metadata = plot._repr_mimebundle_()
    assert bundle["text/plain"].startswith(plot.alt)
    assert metadata["image/png"]["alt"] == plot.alt


def test_a_picture_of_nothing_is_refused():
    """The argument is named."""
    with pytest.raises(dk.InvalidField) as caught:
        plot_icicle()
    assert caught.value.field == "traces"


def test_what_a_bar_used_beyond_what_it_had_is_never_negative():
    """A bar within its time is 0 s over."""
    bar = Bar("call", "mail 1.1", 5.0, 10.0, 10.0, 12.0)
    assert (bar.used, bar.over) == (7.0, 0.0)


# -- the widget ------------------------------------------------------------------------------------


@pytest.fixture
def explorer():
    """A fresh view; what a control swallowed is raised at its end."""
    view = BudgetExplorer()
    yield view
    view.raise_trouble()


def test_each_slider_runs_the_scenario_anew(explorer):
    """Which level fires is told in the status line, whatever is moved."""
    assert "The turn 1 limit fired at 30 s" in status(explorer)
    explorer.sliders["service"].value = 12
    assert "The call limit fired at 15 s" in status(explorer)
    explorer.sliders["call"].value = 40
    explorer.sliders["turn"].value = 60
    explorer.sliders["session"].value = 20
    assert "The session limit fired at 20 s" in status(explorer)
    assert explorer._body.value.count("<img") == 1


def test_the_toggle_takes_the_inheritance_away(explorer):
    """Its state is a shape and a word."""
    assert explorer.inherited.description == "☑ Limits are inherited"
    explorer.inherited.value = False
    assert explorer.inherited.description == "☐ Limits are inherited"
    assert "the session went 10 s past its own" in status(explorer)


def test_the_model_moves_every_control_also_several_at_once(explorer):
    """A teacher sets the numbers from a cell, in one go."""
    with explorer.model.hold_trait_notifications():
        explorer.model.session, explorer.model.turn, explorer.model.service = 40, 20, 4
    shown = {name: slider.value for name, slider in explorer.sliders.items()}
    assert shown == {"session": 40, "turn": 20, "call": 10, "service": 4}
    assert "session 40 s, turn 20 s" in status(explorer)


@pytest.mark.parametrize(("name", "value"), [("session", 10**9), ("call", -5), ("service", 0)])
def test_a_number_outside_its_slider_stops_at_the_end(name, value):
    """No run of a million calls, and no negative time."""
    model = BudgetModel()
    setattr(model, name, value)
    assert getattr(model, name) in BudgetModel.RANGES[name]


def test_a_run_is_made_once_and_again_only_for_other_numbers(monkeypatch):
    """Status, table and picture are one run."""
    made = []
    real = Budgets.run

    def counted(self, folder=None):
        if folder is None:  # it calls itself with a private folder
            made.append(self)
        return real(self, folder)

    monkeypatch.setattr(Budgets, "run", counted)
    model = BudgetModel()
    for _ in range(2):
        assert model.status() in model.text()
        model.html()
        model.plot()
    model.service = 6
    model.text()
    assert [one.service for one in made] == [10, 6]


def test_what_a_notebook_keeps_is_the_same_text_and_html_everywhere(explorer):
    """The fallback has the status and every number, and no control."""
    bundle = explorer._repr_mimebundle_()
    assert bundle["text/plain"] == BudgetModel().text()
    assert bundle["text/html"] == BudgetModel().html()
    assert WIDGET_VIEW in bundle
    page = Page(bundle["text/html"])
    assert {"table", "caption", "th"} <= set(page.tags)
    assert "mail 1.3" in page.words


def test_every_control_has_words_and_none_is_disabled(explorer):
    """Who uses a keyboard or hears the page finds each slider by its name."""
    for slider in explorer.sliders.values():
        assert slider.tooltip
        assert slider.description
        assert not slider.disabled
        assert slider.step == 1
    assert explorer.inherited.tooltip


def test_a_control_works_from_another_thread(explorer):
    """A front end may call back on a thread of its own."""
    slider = explorer.sliders["service"]
    worker = threading.Thread(target=lambda: slider.set_trait("value", 6))
    worker.start()
    worker.join()
    assert "No limit fired" in status(explorer)


def test_trouble_in_a_control_is_told_in_words(monkeypatch):
    """It shows in the view, and in what is stored of it."""
    view = BudgetExplorer()

    def broken(self, folder=None):
        raise dk.StoreError("no room is left")

    monkeypatch.setattr(lab.Budgets, "run", broken)
    view.sliders["call"].value = 7
    assert view.troubles == ["StoreError: no room is left"]
    assert isinstance(view._trouble, ipywidgets.HTML)
    assert "no room is left" in view._trouble.value
