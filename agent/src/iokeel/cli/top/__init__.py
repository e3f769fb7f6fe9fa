"""The screen of `iokeel top`, made with Textual.

Textual is well kept, runs on asyncio, sends a terminal only the cells that change, and has a pilot
that presses keys in tests. Only the app and the table import it, because that takes half a second.
"""
