"""The app of `iokeel top`: its keys, and a question to the agent each second."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.events import Resize
from textual.widgets import Input, Static

from iokeel.cli import client
from iokeel.cli.cells import in_order
from iokeel.cli.top.picture import FREE, SPAN_S, STATES, Picture, Trends, ask
from iokeel.cli.top.table import RowsTable
from iokeel.cli.top.views import RATE, VIEWS, Row, View, help_text, why_text
from iokeel.errors import IokeelError
from iokeel.words.quoting import escaped

# As often as an agent ticks by default.
_INTERVAL_S = 1.0
# A message is shown for so long.
_SAY_S = 10.0
# From this width on, the text is beside the table, otherwise below it.
_BESIDE_COLUMNS = 100
# From this width on, all views are named.
_NAMES_COLUMNS = 60
_HINTS = "Enter why  / filter  < > sort  space pause  ? keys  q quit"


class TopApp(App[None]):
    """The screen: a line on top, the table, the text beside it, and a line at the bottom."""

    CSS = """
    Screen { background: ansi_default; color: ansi_default; }
    #bar, #line { height: 1; }
    #main { layout: vertical; height: 1fr; }
    #main.wide { layout: horizontal; }
    RowsTable { width: 1fr; height: 1fr; }
    #beside { display: none; height: 1.5fr; width: 1fr; scrollbar-size-vertical: 1; }
    #beside { border-top: ascii ansi_default; }
    #main.wide #beside { height: 1fr; border-top: none; padding-left: 1; }
    #main.wide #beside { border-left: ascii ansi_default; }
    #filter { display: none; dock: bottom; background: ansi_default; color: ansi_default; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("1", "view(0)"),
        Binding("2", "view(1)"),
        Binding("3", "view(2)"),
        Binding("up,k", "move(-1)"),
        Binding("down,j", "move(1)"),
        Binding("pageup", "page(-1)"),
        Binding("pagedown", "page(1)"),
        Binding("home,g", "first"),
        Binding("end,G", "last"),
        Binding("left,less_than_sign,comma", "sort(-1)"),
        Binding("right,greater_than_sign,full_stop", "sort(1)"),
        Binding("r,I", "reverse"),
        Binding("slash,f4", "filter"),
        Binding("enter", "why"),
        Binding("J", "scroll(1)"),
        Binding("K", "scroll(-1)"),
        Binding("escape", "close"),
        Binding("space,p", "pause"),
        Binding("c", "copy"),
        Binding("question_mark,h,f1", "help"),
        Binding("q,f10", "quit"),
        Binding("ctrl+c", "quit", priority=True),
    ]

    def __init__(self, socket: Path, first: Picture) -> None:
        """Show an agent. first: what it has just answered."""
        super().__init__()
        self.theme = "ansi-dark"  # the terminal's own colours, light or dark
        self._socket, self._now = socket, first
        self._trends = Trends()
        self._number = 0
        self._sorts = [(RATE, False)] * len(VIEWS)
        self._paused = False
        self._beside = ""  # "why", "help" or nothing
        self._lost: tuple[float, IokeelError] | None = None
        self._said = ("", 0.0)

    def compose(self) -> ComposeResult:
        """Make the widgets."""
        yield Static(id="bar", markup=False)
        with Container(id="main"):
            yield RowsTable()
            with VerticalScroll(id="beside", can_focus=False):
                yield Static(id="text", markup=False)
        yield Static(id="line", markup=False)
        yield Input(id="filter", placeholder="VM, drive, tenant or storage", compact=True)

    def on_mount(self) -> None:
        """Begin to follow the agent, and end in order at signals."""
        # Kept, because a look that ends after the screen finds none of them there any more.
        self._table, self._filter = self.query_one(RowsTable), self.query_one(Input)
        self._head, self._foot = self.query_one("#bar", Static), self.query_one("#line", Static)
        self._text = self.query_one("#text", Static)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.exit)
        self._table.focus()
        self._draw()
        self.run_worker(self._follow())

    def on_resize(self, event: Resize) -> None:
        """Put the text beside the table, or below it."""
        self.query_one("#main").set_class(event.size.width >= _BESIDE_COLUMNS, "wide")

    @property
    def _view(self) -> View[Any]:
        return VIEWS[self._number]

    # The agent

    async def _follow(self) -> None:
        """Ask the agent each second, whether it answers or not."""
        begun = told = False
        while True:
            started = time.monotonic()
            if not self._paused:
                if not begun:
                    begun = await self._begin(quietly=told)
                    told = True
                await self._look()
            await asyncio.sleep(max(_INTERVAL_S / 10, started + _INTERVAL_S - time.monotonic()))

    async def _begin(self, *, quietly: bool) -> bool:
        """Take over the agent's history. Return whether it answered."""
        try:
            history = await asyncio.to_thread(
                client.history, self._socket, SPAN_S, None, ["normalized_iops"]
            )
        except IokeelError as error:
            if not quietly:
                self._say(f"nothing is known of the time before: {error}")
            return False
        self._trends.begin(history, self._now)
        return True

    async def _look(self) -> None:
        try:
            now = await asyncio.to_thread(ask, self._socket)
        except IokeelError as error:  # for instance, the agent is being restarted
            since = self._lost[0] if self._lost else time.monotonic()
            self._lost = (since, error)
            self._trends.add(None)
        else:
            self._lost, self._now = None, now
            self._trends.add(now)
        if self._paused:  # since it was asked
            return
        self._draw()
        await self._explain()

    async def _explain(self) -> None:
        """Bring the text beside the table up to date."""
        row = self._table.chosen
        if self._beside != "why" or self._lost:
            return
        try:
            text = "nothing is chosen" if row is None else ""
            if row is not None:
                text = await asyncio.to_thread(why_text, self._socket, row)
        except IokeelError as error:
            text = escaped(str(error))
        if self._beside == "why":
            self._put(text)

    # The screen

    def _draw(self) -> None:
        """Show what is known now."""
        sort, backwards = self._sorts[self._number]
        every = [*self._view.rows(self._now)]
        wanted = self._filter.value.lower()
        rows = [row for row in every if wanted in row.words]
        rows = in_order(rows, self._view.sort_column(sort), backwards=backwards)
        self._table.show(self._view, rows, self._trends, sort)
        self._head.update(self._bar(rows, len(every)))
        self._draw_line()

    def _bar(self, rows: list[Row[Any]], of: int) -> Text:
        text = Text(no_wrap=True, overflow="crop")
        for number, view in enumerate(VIEWS):
            if number == self._number or self.size.width >= _NAMES_COLUMNS:
                style = "reverse" if number == self._number else ""
                text.append(f"{number + 1} {view.name}", style).append(" ")
        sort, backwards = self._sorts[self._number]
        count = f"{len(rows)}" if len(rows) == of else f"{len(rows)} of {of}"
        states = [row.state for row in rows]
        parts = [f"{states.count(state)} {state}" for state in STATES if state in states]
        told = [part for part in parts if not part.endswith(FREE)]
        gap = " " if self.size.width >= _NAMES_COLUMNS else ""
        text.append(f"{gap}{count}{': ' if told else ''}{', '.join(told)}")
        text.append(f"  by {sort}{' reversed' if backwards else ''}")
        if self._filter.value:
            text.append(f"  /{self._filter.value}")
        return text

    def _draw_line(self) -> None:
        """Show the most important of: no answer, paused, a message, the keys."""
        said, until = self._said
        if self._lost is not None:
            since, error = self._lost
            said = escaped(str(error))
            text = Text(f"no answer for {time.monotonic() - since:.0f} s: {said}", "bold red")
        elif self._paused:
            text = Text("paused; space goes on", "reverse")
        elif time.monotonic() < until:
            text = Text(escaped(said))
        else:
            text = Text(_HINTS, "dim")
        text.no_wrap, text.overflow = True, "ellipsis"
        self._foot.update(text)

    def _say(self, text: str) -> None:
        self._said = (text, time.monotonic() + _SAY_S)
        self._draw_line()

    def _put(self, text: str) -> None:
        """Show a text beside the table."""
        self._text.update(Text(text))

    def _open(self, what: str) -> None:
        """Open or close what is beside the table."""
        self._beside = "" if self._beside == what else what
        self.query_one("#beside").display = self._beside != ""
        self._put(help_text() if self._beside == "help" else "")

    # Keys

    def action_view(self, number: int) -> None:
        """Show another view."""
        self._number = number
        self._table.choose(None)
        self._redraw()

    async def action_move(self, rows: int) -> None:
        """Choose another row."""
        self._table.move(rows)
        await self._explain()

    async def action_page(self, pages: int) -> None:
        """Choose a row a page away."""
        await self.action_move(pages * self._table.page)

    async def action_first(self) -> None:
        """Choose whichever row is the first."""
        self._table.choose(None)
        await self._explain()

    async def action_last(self) -> None:
        """Choose the last row."""
        await self.action_move(len(self._now.drives) + len(self._now.storages))

    def action_sort(self, step: int) -> None:
        """Sort by the next column, shown or not."""
        sort, _ = self._sorts[self._number]
        order = self._view.order
        place = (order.index(sort) + step) % len(order)
        self._sorts[self._number] = (order[place], False)
        self._redraw()

    def action_reverse(self) -> None:
        """Turn the order round."""
        sort, backwards = self._sorts[self._number]
        self._sorts[self._number] = (sort, not backwards)
        self._redraw()

    def _redraw(self) -> None:
        self._draw()
        self.run_worker(self._explain())

    def action_filter(self) -> None:
        """Begin to type a filter."""
        self._filter.display = True
        self._filter.focus()

    def on_input_changed(self) -> None:
        """Filter as one types."""
        self._redraw()

    def on_input_submitted(self) -> None:
        """Keep the filter, and go back to the table."""
        self._filter.display = False
        self._table.focus()

    def action_close(self) -> None:
        """Close what is beside the table, or else end the filter."""
        if self._beside and not self._filter.has_focus:
            self._open(self._beside)
            return
        self._filter.value = ""
        self.on_input_submitted()

    def action_why(self) -> None:
        """Explain the chosen row, or close that."""
        self._open("why")
        self.run_worker(self._explain())

    def action_help(self) -> None:
        """Show the keys, or close them."""
        self._open("help")

    def action_scroll(self, lines: int) -> None:
        """Scroll what is beside the table."""
        self.query_one("#beside").scroll_relative(y=lines, animate=False)

    def action_pause(self) -> None:
        """Stop the screen, or go on."""
        self._paused = not self._paused
        self._draw_line()

    def action_copy(self) -> None:
        """Copy the chosen row, and what is beside the table."""
        beside = str(self._text.content) if self._beside else ""
        self.copy_to_clipboard("\n".join(filter(None, (self._table.text(), beside))))
        self._say("copied, if the terminal allows it")
