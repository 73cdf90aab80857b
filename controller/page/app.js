// Starts the views, then the flow of data.

import { startActions } from "./actions.js";
import { startBlame } from "./blame.js";
import { startCurves } from "./curves.js";
import { startDetail } from "./detail.js";
import { startGlance } from "./glance.js";
import { startIncidents } from "./incidents.js";
import { startJob } from "./job.js";
import { startJobs } from "./jobs.js";
import { startLive } from "./live.js";
import { startMesh, timings } from "./mesh.js";
import { startMesh3d } from "./mesh3d.js";
import { startNodeStory } from "./node_story.js";
import { startNodes } from "./nodes.js";
import { startRankHeat } from "./rank_heat.js";
import { startRouter } from "./router.js";
import { startSelect } from "./select.js";
import { startStory } from "./story.js";
import { startTheme } from "./theme.js";
import { startTimeline } from "./timeline.js";
import { startTraffic } from "./traffic.js";
import { startVerdict } from "./verdict.js";

startTheme();
startVerdict();
startGlance();
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
