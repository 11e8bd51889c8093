// The page.

// The layers of the styles are put in order first.
import './styles/index.css';
import { render } from 'preact';
import { App } from './app';

const place = document.getElementById('page');
if (place) render(<App />, place);
