// What a screen reader is told of, that an eye sees by itself.

let region: HTMLElement | null = null;

export function announce(text: string) {
  if (region === null) {
    region = document.createElement('div');
    region.className = 'unseen';
    region.setAttribute('role', 'status');
    region.setAttribute('aria-live', 'polite');
    document.body.append(region);
  }
  const target = region;
  // The same words twice are heard twice only if they are gone in between.
  target.textContent = '';
  setTimeout(() => {
    target.textContent = text;
  }, 50);
}
