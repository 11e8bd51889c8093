// Lets xterm.js style itself under a policy that allows no style in the page: what it would write into `<style>` elements
// and `style` attributes goes by the browser's own interface, which the policy does not forbid.

/** Stands for a `<style>` element: its text is a style sheet of the document. */
function sheetOf(owner: Document): HTMLElement {
  const element = owner.createElement('span');
  element.hidden = true;
  const sheet = new CSSStyleSheet();
  owner.adoptedStyleSheets = [...owner.adoptedStyleSheets, sheet];
  let text = '';
  Object.defineProperty(element, 'textContent', {
    get: () => text,
    set: (value: string) => {
      text = value;
      sheet.replaceSync(value);
    },
  });
  element.remove = () => {
    owner.adoptedStyleSheets = owner.adoptedStyleSheets.filter((other) => other !== sheet);
    element.parentNode?.removeChild(element);
  };
  return element;
}

function setAttribute(this: HTMLElement, name: string, value: string) {
  if (name === 'style') this.style.cssText = value;
  else Element.prototype.setAttribute.call(this, name, value);
}

/** A document that makes elements which the policy allows. */
export function styled(owner: Document): Document {
  const make = (name: string) => {
    if (name === 'style') return sheetOf(owner);
    const element = owner.createElement(name);
    if (name === 'span') element.setAttribute = setAttribute;
    return element;
  };
  return new Proxy(owner, {
    get: (target, name) => {
      if (name === 'createElement') return make;
      const value: unknown = Reflect.get(target, name, target);
      return typeof value === 'function' ? (value as (...all: unknown[]) => unknown).bind(target) : value;
    },
    set: (target, name, value) => Reflect.set(target, name, value, target),
  });
}

/** Does work in which `<style>` elements of the document itself are made. */
export function whileStyled(owner: Document, work: () => void) {
  const make = owner.createElement.bind(owner);
  const styling = ((name: string, options?: ElementCreationOptions) => {
    if (name !== 'style') return make(name, options);
    owner.createElement = make;
    try {
      return sheetOf(owner);
    } finally {
      owner.createElement = styling;
    }
  }) as Document['createElement'];
  owner.createElement = styling;
  try {
    work();
  } finally {
    // What was there before is the prototype's.
    delete (owner as { createElement?: unknown }).createElement;
  }
}

/**
 * Colours of 24 bits are written into `style` attributes by a part of xterm.js that takes the page's own document. Where
 * it is not found they are left out, and nothing else.
 */
export function styleRows(xterm: object, owner: Document) {
  const inner = (value: unknown, name: string): unknown =>
    typeof value === 'object' && value !== null ? (value as Record<string, unknown>)[name] : undefined;
  const renderer = inner(inner(inner(inner(xterm, '_core'), '_renderService'), '_renderer'), 'value');
  const factory = inner(renderer, '_rowFactory');
  if (typeof factory === 'object' && factory !== null && '_document' in factory) factory._document = owner;
}
