import { PlaceHead, type PlaceProps } from '../../layout/place';

export function Settings(_: PlaceProps) {
  return (
    <div class="place">
      <PlaceHead crumbs={[{ text: 'Settings' }]} />
    </div>
  );
}
