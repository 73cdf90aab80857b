// Starts the views, then the flow of data.

import { startBlame } from "./slow/blame.js";
import { startConnection } from "./base/connection.js";
import { startCurves } from "./run/curves.js";
import { startDayLane } from "./past/day_lane.js";
import { startDetail } from "./overview/detail.js";
import { startDiagnoses } from "./nodes/diagnoses.js";
import { startFigures } from "./overview/figures.js";
import { startHealth } from "./base/health.js";
import { startIncidents } from "./incidents/incidents.js";
import { startJob } from "./run/job.js";
import { startJobActions } from "./run/job_actions.js";
import { startJobs } from "./base/jobs.js";
import { startLedger } from "./run/ledger.js";
import { startLive } from "./base/live.js";
import { startLogs } from "./logs/logs.js";
import { startMesh, timings } from "./overview/mesh.js";
import { startMesh3d } from "./overview/mesh3d.js";
import { startNeeds } from "./overview/needs.js";
import { startNodeStory } from "./nodes/node_story.js";
import { startNodeHeat } from "./slow/node_heat.js";
import { startNodes } from "./nodes/nodes.js";
import { startRankHeat } from "./slow/rank_heat.js";
import { startRouter } from "./base/router.js";
import { startRunbook } from "./incidents/runbook.js";
import { startSelect } from "./base/select.js";
import { startStacks } from "./incidents/stacks.js";
import { startStory } from "./incidents/story.js";
import { startThen } from "./past/then.js";
import { startTheme } from "./base/theme.js";
import { startTimeline } from "./slow/timeline.js";
import { startTraffic } from "./nodes/traffic.js";

startTheme();
startConnection();
startHealth();
startThen();
startDayLane();
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
startNodeHeat();
startBlame();
startTimeline();
startTraffic();
startIncidents();
startStory();
startNodes();
startNodeStory();
startMesh3d();
startDiagnoses();
startStacks();
startJobActions();
startLogs();
startSelect();
startLive();
startRouter(); // last: it notifies all the others of the view

// Read by the page's tests: how long drawing takes.
Object.assign(window, { holdfast: { timings } });
