// Syntax colours. The highlighter and each language are loaded when they are first needed.

const LANGUAGES = (
  "bash c cpp csharp css diff dockerfile go ini java javascript json kotlin lua makefile markdown php python ruby rust sql " +
  "swift typescript xml yaml"
).split(" ");
const ALIASES = {
  "c++": "cpp",
  "c#": "csharp",
  cs: "csharp",
  html: "xml",
  svg: "xml",
  js: "javascript",
  jsx: "javascript",
  mjs: "javascript",
  kt: "kotlin",
  md: "markdown",
  py: "python",
  rb: "ruby",
  rs: "rust",
  sh: "bash",
  shell: "bash",
  console: "bash",
  zsh: "bash",
  toml: "ini",
  ts: "typescript",
  tsx: "typescript",
  yml: "yaml",
};
const MAX_CHARS = 60_000; // longer code stays plain: colouring it would be a long task
const loading = new Map();
let core = null;

/** Pieces [{text, scope}] of code in this language; null where the language is not known or the code is too long. */
export async function highlight(code, language) {
  const name = ALIASES[language.toLowerCase()] ?? language.toLowerCase();
  if (!LANGUAGES.includes(name) || code.length > MAX_CHARS) return null;
  core ??= import("../../vendor/hljs/core.js").then((module) => module.default);
  const highlighter = await core;
  if (!loading.has(name)) {
    const load = import(`../../vendor/hljs/${name}.js`).then((module) => highlighter.registerLanguage(name, module.default));
    loading.set(name, load);
  }
  await loading.get(name);
  const result = highlighter.highlight(code, { language: name, ignoreIllegals: true });
  return pieces(result._emitter.rootNode);
}

/** The result as data and not as HTML: components make the elements. */
function pieces(root) {
  const found = [];
  const walk = (node, scope) => {
    if (typeof node === "string") found.push({ text: node, scope });
    else for (const child of node.children) walk(child, node.scope ?? scope);
  };
  walk(root, "");
  return found;
}
