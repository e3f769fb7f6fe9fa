"""The screen of `iokeel top`. Only its app and table import Textual, which takes half a second."""
