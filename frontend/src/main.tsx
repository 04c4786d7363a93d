import "./styles/tokens.css";
import "./styles/parts.css";
import "./styles/layout.css";
import { render } from "preact";
import { App } from "./app";
import { apply, theme } from "./state/theme";

apply(theme.value);
const place = document.getElementById("app");
if (place) render(<App />, place);
