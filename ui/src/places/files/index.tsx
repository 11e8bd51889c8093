import { PlaceHead, type PlaceProps } from '../../layout/place';

export function Files(_: PlaceProps) {
  return (
    <div class="place">
      <PlaceHead crumbs={[{ text: 'Files' }]} />
    </div>
  );
}
