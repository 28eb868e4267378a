// Components that show markdown and code.

import { Component, html, useEffect, useRef, useState } from "../../vendor/htm-preact.js";
import { CopyButton } from "../ui.js";
import { highlight } from "./highlight.js";
import { MarkdownBlocks } from "./markdown.js";

/** Markdown, which may grow. */
export function Markdown({ text }) {
  const blocks = useRef(null);
  blocks.current ??= new MarkdownBlocks();
  return html`<div class="markdown">
    ${blocks.current
      .update(text)
      .map((block) =>
        block.kind === "code"
          ? html`<${SameCode} key=${block.key} block=${block} />`
          : html`<${Html} key=${block.key} block=${block} />`,
      )}
  </div>`;
}

/** Sanitised HTML. It is set only when it changed. */
class Html extends Component {
  shouldComponentUpdate({ block }) {
    return block !== this.props.block && String(block.html) !== String(this.props.block.html);
  }

  render({ block }) {
    return html`<div class="block" dangerouslySetInnerHTML=${{ __html: block.html }}></div>`;
  }
}

/** A block of code of an answer. It is rendered again only when it has changed: a long answer has many of them. */
class SameCode extends Component {
  shouldComponentUpdate({ block }) {
    return block !== this.props.block && (block.text !== this.props.block.text || block.open !== this.props.block.open);
  }

  render({ block }) {
    return html`<${CodeBlock} text=${block.text} language=${block.language} open=${block.open} />`;
  }
}

/** Code with its language and a button to copy it. It is coloured once it is complete. */
export function CodeBlock({ text, language = "", open = false }) {
  const [coloured, setColoured] = useState(null);
  useEffect(() => {
    if (open || !language) return undefined;
    let wanted = true;
    highlight(text, language)
      .then((pieces) => wanted && setColoured(pieces && { text, pieces }))
      .catch(() => {}); // it stays plain
    return () => (wanted = false);
  }, [text, language, open]);
  const shown =
    coloured?.text === text
      ? coloured.pieces.map(({ text: piece, scope }) => (scope ? html`<span class=${`hl-${scope.split(".")[0]}`}>${piece}</span>` : piece))
      : text;
  return html`<figure class="code">
    <figcaption><span>${language || "text"}</span><${CopyButton} text=${text} label="Copy code" /></figcaption>
    <pre tabindex="0" aria-label=${`Code${language ? ` in ${language}` : ""}`}><code>${shown}</code></pre>
  </figure>`;
}
