// Starts the views, then the flow of data.

import { startCurves } from "./curves.js";
import { startDetail } from "./detail.js";
import { startIncidents } from "./incidents.js";
import { startLive } from "./live.js";
import { startMesh, timings } from "./mesh.js";
import { startNodes } from "./nodes.js";
import { startSelect } from "./select.js";
import { startTheme } from "./theme.js";
import { startTraffic } from "./traffic.js";
import { startVerdict } from "./verdict.js";

startTheme();
startVerdict();
startMesh();
startCurves();
startDetail();
startTraffic();
startIncidents();
startNodes();
startSelect();
startLive();

// Read by the page's tests: how long the mesh takes to draw.
window.holdfast = { timings };
