// The focus stays somewhere: when what has it is taken away or put elsewhere, as by a list that is read anew, it goes to
// what is nearest. Else it would be nowhere, and whoever works by keyboard or by ear would have to start over.

/** Elements that had the focus lately, the last one at the end. */
const REMEMBERED = 8;

/** What may be given the focus where nothing better is left. */
const REGIONS = '[role="alertdialog"], form, section, .place, main';

/** Sees to it until the function that it gives is called. `home` has the focus when nothing else is left. */
export function keepFocus(home: HTMLElement): () => void {
  let had: HTMLElement | null = null;
  /** What it stood in, from the inside out: a thing that is gone knows that no more. */
  let around: HTMLElement[] = [];
  let before: HTMLElement[] = [];

  const came = ({ target }: FocusEvent) => {
    if (!(target instanceof HTMLElement) || target === had) return;
    if (had !== null) before = [...before.filter((one) => one !== had), had].slice(-REMEMBERED);
    had = target;
    around = [];
    for (let one = target.parentElement; one !== null; one = one.parentElement) around.push(one);
  };
  // What is taken away, or moved, is left as well, in some browsers with this event. Only who clicks beside it or goes on
  // past the end of the page gives it up.
  let givesUp = false;
  const mayGiveUp = (event: Event) => {
    if (event instanceof KeyboardEvent && event.key !== 'Tab') return;
    givesUp = true;
    setTimeout(() => (givesUp = false));
  };
  const left = ({ relatedTarget }: FocusEvent) => {
    if (relatedTarget === null && givesUp) had = null;
  };
  const changed = () => {
    if (had === null || document.activeElement !== document.body) return;
    const lost = had;
    if (lost.isConnected) return lost.focus({ preventScroll: true });
    const place = around.find((one) => one.isConnected) ?? home;
    const row = place.closest('[role="table"]')?.querySelector<HTMLElement>('[data-row][tabindex="0"]');
    const opener = before.findLast((one) => one.isConnected && place.contains(one));
    give(row ?? opener ?? place.closest<HTMLElement>(REGIONS) ?? home);
  };

  document.addEventListener('focusin', came);
  document.addEventListener('focusout', left);
  document.addEventListener('mousedown', mayGiveUp, true);
  document.addEventListener('keydown', mayGiveUp, true);
  const observer = new MutationObserver(changed);
  observer.observe(document.body, { childList: true, subtree: true });
  return () => {
    observer.disconnect();
    document.removeEventListener('focusin', came);
    document.removeEventListener('focusout', left);
    document.removeEventListener('mousedown', mayGiveUp, true);
    document.removeEventListener('keydown', mayGiveUp, true);
  };
}

function give(to: HTMLElement) {
  to.focus({ preventScroll: true });
  if (document.activeElement === to) return;
  // What takes no focus by itself takes it this once.
  to.tabIndex = -1;
  to.addEventListener('blur', () => to.removeAttribute('tabindex'), { once: true });
  to.focus({ preventScroll: true });
}
