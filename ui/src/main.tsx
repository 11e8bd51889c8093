// The page.

import { render } from 'preact';
import { App } from './app';
import './styles/index.css';

const place = document.getElementById('page');
if (place) render(<App />, place);
