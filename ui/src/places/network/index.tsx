import { PlaceHead, type PlaceProps } from '../../layout/place';

export function Network(_: PlaceProps) {
  return (
    <div class="place">
      <PlaceHead crumbs={[{ text: 'Network' }]} />
    </div>
  );
}
