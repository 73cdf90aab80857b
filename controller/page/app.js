// Starts the views, then the flow of data.

import { startActions } from "./actions.js";
import { startBlame } from "./blame.js";
import { startConnection } from "./connection.js";
import { startCurves } from "./curves.js";
import { startDetail } from "./detail.js";
import { startFigures } from "./figures.js";
import { startHealth } from "./health.js";
import { startIncidents } from "./incidents.js";
import { startJob } from "./job.js";
import { startJobs } from "./jobs.js";
import { startLedger } from "./ledger.js";
import { startLive } from "./live.js";
import { startMesh, timings } from "./mesh.js";
import { startMesh3d } from "./mesh3d.js";
import { startNeeds } from "./needs.js";
import { startNodeStory } from "./node_story.js";
import { startNodes } from "./nodes.js";
import { startRankHeat } from "./rank_heat.js";
import { startRouter } from "./router.js";
import { startRunbook } from "./runbook.js";
import { startSelect } from "./select.js";
import { startStory } from "./story.js";
import { startTheme } from "./theme.js";
import { startTimeline } from "./timeline.js";
import { startTraffic } from "./traffic.js";

startTheme();
startConnection();
startHealth();
startFigures();
startNeeds();
startLedger();
startRunbook();
startMesh();
startCurves();
startJob();
startJobs();
startDetail();
startRankHeat();
startBlame();
startTimeline();
startTraffic();
startIncidents();
startStory();
startNodes();
startNodeStory();
startMesh3d();
startActions();
startSelect();
startLive();
startRouter(); // last: it notifies all the others of the view

// Read by the page's tests: how long drawing takes.
window.holdfast = { timings };
