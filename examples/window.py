"""A window with a stop button. The answer comes on a worker; the window takes what is there, thirty times a second.

python examples/window.py Why is the sky blue?
"""

import sys
import tkinter

import streamglot


class Window:
    def __init__(self, root: tkinter.Tk, model: str, question: str) -> None:
        self._root = root
        self._text = tkinter.Text(root, wrap="word")
        self._text.pack()
        self._running = streamglot.run_in_thread(model=model, messages=question)
        tkinter.Button(root, text="stop", command=self._running.stop).pack()
        self._poll()

    def _poll(self) -> None:
        for event in self._running.drain():
            if isinstance(event, streamglot.TextDelta):
                self._text.insert("end", event.text)
            elif isinstance(event, streamglot.StreamError):
                self._text.insert("end", f"\n[{event.message}]")
        if self._running.finished:
            print(self._text.get("1.0", "end").strip())
            self._root.after(500, self._root.destroy)
        else:
            self._root.after(33, self._poll)


def main() -> None:
    words = sys.argv[1:]
    model = words.pop(1) if words[:1] == ["--model"] else ""
    question = " ".join(words[1:] if model else words) or "Say hello."
    try:
        root = tkinter.Tk()
    except tkinter.TclError as error:
        sys.exit(f"there is {error}")
    Window(root, model, question)
    root.mainloop()


if __name__ == "__main__":
    main()
