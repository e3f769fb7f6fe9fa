import "@patternfly/react-core/dist/styles/base.css";
import "uplot/dist/uPlot.min.css";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { App } from "./App";
import { followTheme } from "./theme";
import "./page.css"; // last, so that it is stronger than the components' own

followTheme();
const place = document.getElementById("app");
if (place) {
    createRoot(place).render(
        <StrictMode>
            <App />
        </StrictMode>,
    );
}
