import { PlaceHead, type PlaceProps } from '../../layout/place';

export function Sandboxes(_: PlaceProps) {
  return (
    <div class="place">
      <PlaceHead crumbs={[{ text: 'Sandboxes' }]} />
    </div>
  );
}
