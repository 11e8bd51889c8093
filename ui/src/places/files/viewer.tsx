// A file looked at: as text, or as a raster image that is drawn, never run.

import { useEffect, useRef, useState } from 'preact/hooks';
import { asTold, isAbort, type Told } from '../../api/problem';
import { size as written } from '../../format/size';
import { Button } from '../../parts/button';
import { Log } from '../../parts/log';
import { Loading, Panel } from '../../parts/panel';
import { Size } from '../../parts/size';
import { ErrorBox } from '../../parts/told';
import type { Place } from './api';
import { shownAs, type Shown } from './kind';
import { base, shown } from './path';

/** Bytes of text that are shown at once, and of an image. */
const TEXT = 256 * 1024;
const IMAGE = 16 * 1024 * 1024;

interface Seen {
  kind: Shown;
  size: number;
  bytes: Uint8Array<ArrayBuffer>;
}

export function Viewer({ place, path, onClose }: { place: Place; path: string; onClose: () => void }) {
  const [seen, setSeen] = useState<Seen | null>(null);
  const [error, setError] = useState<Told | null>(null);
  const [most, setMost] = useState(TEXT);
  const [tries, setTries] = useState(0);
  useEffect(() => {
    setSeen(null);
    setMost(TEXT);
  }, [place.id, path]);
  useEffect(() => {
    const abort = new AbortController();
    setError(null);
    const look = async () => {
      let { bytes, size } = await place.begin(path, most, abort.signal);
      const kind = shownAs(bytes, bytes.length >= size);
      if (kind === 'image' && bytes.length < size && size <= IMAGE) {
        ({ bytes, size } = await place.begin(path, IMAGE, abort.signal));
      }
      setSeen({ kind, size, bytes });
    };
    look().catch((failed: unknown) => {
      if (isAbort(failed)) return;
      const told = asTold(failed);
      // A file without bytes has no range.
      if (told.code === 'range-missing') setSeen({ kind: 'text', size: 0, bytes: new Uint8Array() });
      else setError(told);
    });
    return () => abort.abort();
  }, [place.id, path, most, tries]);

  const name = shown(base(path));
  return (
    <Panel
      title={name}
      about={seen && <Size bytes={seen.size} />}
      actions={
        <>
          <a class="button quiet small" href={place.contentAt(path)} download>
            Download
          </a>
          <Button quiet small onClick={onClose}>
            Close
          </Button>
        </>
      }
    >
      {error && <ErrorBox told={error} onRetry={() => setTries(tries + 1)} />}
      {seen === null ? !error && <Loading what="Reading the file" /> : <Content seen={seen} name={name} onMore={() => setMost(most * 8)} />}
    </Panel>
  );
}

function Content({ seen, name, onMore }: { seen: Seen; name: string; onMore: () => void }) {
  const { kind, bytes, size } = seen;
  const whole = bytes.length >= size;
  if (size === 0) return <p class="soft">The file is empty.</p>;
  if (kind === 'image') {
    return whole ? (
      <Picture bytes={bytes} name={name} />
    ) : (
      <p class="soft">An image of {written(size)}: more than the {written(IMAGE)} that are drawn here. Download it.</p>
    );
  }
  if (kind === 'binary') return <p class="soft">It is neither text nor an image that is drawn here. Download it.</p>;
  return (
    <div class="stack tight">
      <Log text={new TextDecoder().decode(bytes)} label={`Content of ${name}`} follow={false} />
      {!whole && (
        <div class="row small">
          <span class="soft">
            ✂ The first {written(bytes.length)} of {written(size)}.
          </span>
          {bytes.length < 4 * 1024 * 1024 && (
            <Button small quiet onClick={onMore}>
              Show more
            </Button>
          )}
        </div>
      )}
    </div>
  );
}

/** Draws an image: its bytes are decoded, and nothing in them has a place in the page. */
function Picture({ bytes, name }: { bytes: Uint8Array<ArrayBuffer>; name: string }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [drawn, setDrawn] = useState<{ width: number; height: number } | null>(null);
  const [broken, setBroken] = useState(false);
  useEffect(() => {
    let gone = false;
    setBroken(false);
    createImageBitmap(new Blob([bytes]))
      .then((bitmap) => {
        const element = canvas.current;
        if (gone || element === null) return bitmap.close();
        // No larger than a screen shows: a small file may hold a huge image.
        const scale = Math.min(1, 2_400 / Math.max(bitmap.width, bitmap.height));
        element.width = Math.max(1, Math.round(bitmap.width * scale));
        element.height = Math.max(1, Math.round(bitmap.height * scale));
        element.getContext('2d')?.drawImage(bitmap, 0, 0, element.width, element.height);
        setDrawn({ width: bitmap.width, height: bitmap.height });
        bitmap.close();
      })
      .catch(() => setBroken(true));
    return () => {
      gone = true;
    };
  }, [bytes]);
  if (broken) return <p class="soft">The image cannot be drawn. Download it.</p>;
  return (
    <figure class="picture">
      <canvas ref={canvas} role="img" aria-label={`The image ${name}`} />
      <figcaption class="small soft">{drawn && `${drawn.width} × ${drawn.height}`}</figcaption>
    </figure>
  );
}
