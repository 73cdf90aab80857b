// What a person can do to the job: a checkpoint of the next step, its end. Each asks once more, and is off when it is over.

import { post } from "../base/api.js";
import { byId, setText, sureButton } from "../base/dom.js";
import { messageOf } from "../base/errors.js";
import { announce } from "../base/select.js";
import { on, state } from "../base/store.js";

const OVER = ["finished", "failed", "stopped"];

/** @param {() => Promise<any>} work @param {string} done */
const doing = (work, done) => async () => {
  let said = done;
  try {
    await work();
  } catch (error) {
    said = messageOf(error);
  }
  setText(byId("job-answer"), said);
  announce(said);
};

export function startJobActions() {
  const checkpoint = sureButton("Checkpoint now", () => "Really checkpoint?",
    doing(() => post("/job/checkpoint"), "a checkpoint of the next step is requested"));
  const stop = sureButton("Stop the job", () => "Really stop the job?", doing(() => post("/job/stop"), "the job is being stopped"));
  byId("job-actions").append(checkpoint, stop);
  on("status", () => {
    const job = state.status?.job;
    const why = !job ? "there is no job" : OVER.includes(job.state) ? `the job is ${job.state}` : "";
    checkpoint.disabled = why !== "" || job?.state !== "running";
    checkpoint.title = why || (checkpoint.disabled ? `the job is ${job?.state}` : "");
    stop.disabled = why !== "";
    stop.title = why;
  });
  on("job", () => setText(byId("job-answer"), ""));
}
