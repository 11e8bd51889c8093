import { PlaceHead, type PlaceProps } from '../../layout/place';

export function Sessions(_: PlaceProps) {
  return (
    <div class="place">
      <PlaceHead crumbs={[{ text: 'Sessions' }]} />
    </div>
  );
}
