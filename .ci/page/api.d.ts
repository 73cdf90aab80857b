// Made of /openapi.json by .ci/page/api_types.py: not to be edited.

declare namespace Api {
  interface AccountPart {
    kind: string;
    name: string;
    seconds: number;
    share: number;
    figure: string;
    culprit: number;
  }
  interface ActionTime {
    kind: string;
    stage: number;
    seconds: number;
    samples: number;
  }
  interface AtRisk {
    worker: number | null;
    node: number | null;
    job: number | null;
  }
  interface Began {
    at: number;
    generation: number;
  }
  interface Begun {
    id: string;
  }
  interface Blame {
    job: string;
    name: string;
    first: number;
    last: number;
    steps: number;
    step_s: number;
    ideal_s: number;
    account: StepAccount;
    culprits: Culprit[];
    ranks: any;
    path: any[];
    course: any[];
    incomplete: number[];
  }
  interface BlameBrief {
    job: string;
    name: string;
    first: number;
    last: number;
    steps: number;
    step_s: number;
    ideal_s: number;
    account: StepAccount;
    culprits: Culprit[];
  }
  interface Condition {
    condition: "failed" | "stopped" | "no progress" | "recovering" | "slow" | "paused" | "at risk" | "waiting for nodes" | "starting" | "well" | "finished";
    sentence: string;
    since: number;
    action: string;
    needs_person: boolean;
    doing: string;
    usual_s: number | null;
    basis: string[];
    remedy: "" | "incident" | "stacks" | "diagnose" | "blame" | "nodes" | "checkpoint";
    target: string;
    rank: number | null;
  }
  interface Culprit {
    kind: string;
    rank: number;
    peer: number;
    node: string;
    what: string;
    ratio: number | null;
    z: number | null;
    peers: number;
    self_s: number;
    cost_s: number;
    share: number;
    cost: string;
    what_if_s: number;
    induced_s: number;
    victims: number;
    text: string;
    works?: Record<string, number>;
    where?: string;
    every?: number;
    burst_s?: number;
    by_design?: boolean;
    since?: number | null;
    history?: SlowPoints | null;
  }
  interface Day {
    job: string;
    since: number;
    until: number;
    at: number[];
    end: number[];
    condition: string[];
    step: number[];
    goodput: (number | null)[];
    generations: Began[];
    checkpoints: Stored[];
    incidents: IncidentThen[];
  }
  interface DiagnoseSpec {
    nodes?: string[];
    suite?: "quick" | "full";
    tests?: ("gemm" | "memory" | "disk" | "clock" | "kernel-log" | "nvml" | "loopback" | "device-copy" | "all-to-all" | "pair" | "all-reduce")[];
    busy?: boolean;
    passes?: number;
  }
  interface Diagnosis {
    id: string;
    why: string;
    state: "running" | "done";
    suite: string;
    tests: string[];
    nodes: string[];
    stage: "nodes" | "repeat" | "pairs" | "neighbours" | "done";
    rounds: number;
    jobs_done: number;
    jobs_open: number;
    began: number | null;
    ended: number | null;
    failed: string[];
    cleared: string[];
    verdicts: Verdict[];
  }
  interface DiagnosisBrief {
    id: string;
    why: string;
    state: "running" | "done";
    suite: string;
    tests: string[];
    nodes: string[];
    stage: "nodes" | "repeat" | "pairs" | "neighbours" | "done";
    rounds: number;
    jobs_done: number;
    jobs_open: number;
    began: number | null;
    ended: number | null;
    failed: string[];
    cleared: string[];
  }
  interface Done {
    ok?: boolean;
  }
  interface EarlierIncident {
    id: string;
    kind: string;
    culprit: string;
    opened: number;
    summary: string;
    same: ("node" | "rank" | "traceback")[];
  }
  interface FaultSpec {
    fault: string;
  }
  interface Finding {
    kind: string;
    severity: "info" | "warning" | "critical";
    subject: string;
    text: string;
    at: number;
    evidence: any;
  }
  interface Gpu {
    index: number;
    uuid: string;
    model: string;
    pci: string;
    memory_bytes: number;
    values: Record<string, number | null>;
  }
  interface Health {
    condition: "failed" | "stopped" | "no progress" | "recovering" | "slow" | "paused" | "at risk" | "waiting for nodes" | "starting" | "well" | "finished";
    sentence: string;
    since: number;
    action: string;
    needs_person: boolean;
    doing: string;
    usual_s: number | null;
    basis: string[];
    remedy: "" | "incident" | "stacks" | "diagnose" | "blame" | "nodes" | "checkpoint";
    target: string;
    rank: number | null;
    others: Condition[];
  }
  interface HealthThen {
    condition: string;
    sentence: string;
    since: number;
    action: string;
    needs_person: boolean;
    doing: string;
    usual_s: number | null;
    rank: number | null;
    target: string;
  }
  interface HealthsThen {
    condition: string;
    sentence: string;
    since: number;
    action: string;
    needs_person: boolean;
    doing: string;
    usual_s: number | null;
    rank: number | null;
    target: string;
    others: HealthThen[];
  }
  interface Heat {
    job: string;
    name: string;
    first: number;
    last: number;
    ranks: number[];
    node_of: string[];
    phases: string[];
    seconds: ((number | null)[])[];
    ratio: ((number | null)[])[];
    nodes: string[];
    steps: number[];
    by_step: ((number | null)[])[];
    worst: number[];
    worst_by_step: ((number | null)[])[];
  }
  interface Hour {
    job: string;
    at: number[];
    mfu: (number | null)[];
    goodput: (number | null)[];
    at_risk: (number | null)[];
    spares: number[];
  }
  interface Incident {
    id: string | number;
    job: string | null;
    kind: string;
    culprit: string;
    severity: "info" | "warning" | "critical";
    state: "open" | "recovering" | "closed" | "failed";
    summary: string;
    opened: number;
    closed: number | null;
    action: string | null;
    reason: string | null;
    detect_s: number | null;
    recover_s: number | null;
    source: string | null;
    restore_s: number | null;
    restored_bytes: number | null;
    restore_sent_bytes?: number | null;
    imports_s?: number | null;
    hint?: string | null;
    generation_from: number | null;
    generation_to: number | null;
    step_at_fault: number | null;
    step_resumed: number | null;
    phases: Phase[];
    findings: Finding[];
    stacks: Stacks | null;
  }
  interface IncidentThen {
    id: string;
    kind: string;
    culprit: string;
    text: string;
    opened: number;
    closed: number | null;
    state: string;
    action: string;
    generation: number | null;
  }
  interface Injected {
    id: string;
    armed: boolean;
  }
  interface Job {
    id: string;
    name: string;
    state: "pending" | "starting" | "running" | "recovering" | "finished" | "failed" | "stopped";
    reason: string | null;
    priority?: number;
    preempt?: boolean;
    share_bytes?: number;
    shares_with?: string[];
    generation: number;
    nnodes: number;
    nproc_per_node: number;
    step: number;
    step_of_life?: number | null;
    max_steps: number | null;
    restarts: number;
    submitted_at: number | null;
    started_at: number | null;
    ended_at: number | null;
    exit_code: number | null;
    world_size: number;
    node_counts: number[];
    program: Program;
    loss: number | null;
    tokens_per_s: number | null;
    step_seconds: number | null;
    step_planned_seconds?: number | null;
    planned?: Planned | null;
    traffic?: TrafficBesidePlan | null;
    mfu: number | null;
    goodput: number | null;
    time: Spent;
    health: Health;
    pause?: JobPause | null;
    at_risk: AtRisk | null;
    sizes: number[] | null;
    assignment: Placement[];
    placement?: Order | null;
    steps_counted?: boolean;
    progress?: string | null;
    queued?: boolean;
    faults_left?: string[];
  }
  interface JobBrief {
    id: string;
    name: string;
    state: "pending" | "starting" | "running" | "recovering" | "finished" | "failed" | "stopped";
    reason: string | null;
    priority?: number;
    preempt?: boolean;
    share_bytes?: number;
    shares_with?: string[];
    generation: number;
    nnodes: number;
    nproc_per_node: number;
    step: number;
    step_of_life?: number | null;
    max_steps: number | null;
    restarts: number;
    submitted_at: number | null;
    started_at: number | null;
    ended_at: number | null;
    exit_code: number | null;
    nodes?: string[];
  }
  interface JobLimits {
    hang_steps?: number | null;
    hang_floor?: number | null;
    hang_limit_start?: number | null;
    stuck_limit?: number | null;
    pause_limit?: number | null;
    idle_limit?: number | null;
    idle_limit_start?: number | null;
    exit_limit?: number | null;
    pause_alert?: number | null;
  }
  interface JobPause {
    life: "busy" | "idle" | "held" | "unknown";
    text: string;
    place: string;
    ranks: number[];
    waiting: number;
    since: number;
    seconds: number;
    limit_seconds: number | null;
    usual_seconds: number;
  }
  interface JobSpec {
    name?: string;
    program: ProgramSpec;
    nnodes?: number;
    nproc_per_node?: number;
    max_restarts?: number | null;
    node_counts?: number[];
    max_steps?: number | null;
    faults?: string[];
    limits?: JobLimits | null;
    priority?: number;
    preempt?: boolean;
    share_bytes?: number | null;
    parallel?: Parallel | null;
    step_bytes?: StepBytes | null;
    layouts?: SizedLayout[];
  }
  interface Lanes {
    job: string;
    zero: number;
    first: number;
    last: number;
    ranks: number[];
    left_out: number;
    planned: boolean;
    kinds: string[];
    groups: string[];
    rank: number[];
    kind: number[];
    group: number[];
    step: number[];
    stage: number[];
    micro_batch: number[];
    start: number[];
    took: number[];
    waited: number[];
    bytes: number[];
    arrows: Record<string, number[]>;
  }
  interface LateRank {
    rank: number;
    lane: number;
    late_s: number | null;
    late: string;
    late_id: string;
    own_s: number | null;
    own: string;
    own_id: string;
    cause: string;
    peer: number;
    text: string;
  }
  interface Layers {
    first: number;
    stop: number;
    rank: number;
  }
  interface Layout {
    job: string;
    generation: number;
    kind: "node" | "switch" | "pod" | "nodes";
    pp: number;
    boxes: LayoutPlace[];
  }
  interface LayoutPlace {
    name: string;
    inside: string;
    nodes: number;
    ranks: number[][];
    stages: any[][];
    sent: number;
    received: number;
    sent_measured: number | null;
    received_measured: number | null;
  }
  interface LevelBytes {
    level: "node" | "switch" | "pod" | "core" | "nics";
    pp: number;
    dp: number;
    tp: number;
    total: number;
    naive: number;
  }
  interface Nic {
    name: string;
    kind: string;
    speed_bps: number;
    numa_node: number;
    state: string;
    link_layer?: string;
  }
  interface NicTraffic {
    name: string;
    t0: number;
    t: number[];
    tx: number[];
    rx: number[];
  }
  interface Node {
    name: string;
    state: "joining" | "healthy" | "suspect" | "faulty" | "cordoned" | "spare" | "lost";
    reason: string | null;
    connected: boolean;
    switch: string;
    slots: number;
    job: string | null;
    jobs?: string[];
    ranks: number[];
    frame_age: number | null;
    tx_bytes_per_s: number | null;
    rx_bytes_per_s: number | null;
    hostname: string;
    ips: string[];
    pod: Pod;
    cpus: number;
    memory_bytes: number;
    versions: Record<string, string>;
    heartbeat_interval: number | null;
    gpus: Gpu[];
    nics: Nic[];
    host: Record<string, number | null>;
  }
  interface NodeBrief {
    name: string;
    state: "joining" | "healthy" | "suspect" | "faulty" | "cordoned" | "spare" | "lost";
    reason: string | null;
    connected: boolean;
    switch: string;
    slots: number;
    job: string | null;
    jobs?: string[];
    ranks: number[];
    frame_age: number | null;
    tx_bytes_per_s: number | null;
    rx_bytes_per_s: number | null;
  }
  interface NodeFailure {
    at: number;
    kind: string;
  }
  interface NodeHistory {
    cordoned: boolean;
    evicted: string;
    evicted_at: number;
    quarantined: boolean;
    failed_job: string;
    outs: any[][];
    node_failures: NodeFailure[];
    verdicts: any[];
  }
  interface NotifyAnswer {
    receiver: string;
    ok: boolean;
    answer: string;
  }
  interface NotifySpec {
    receiver?: string;
  }
  interface OffPlan {
    node: string;
    text: string;
    since: number;
  }
  interface Order {
    parallel: Record<string, number>;
    in_bytes: boolean;
    levels: LevelBytes[];
    slow: number;
    naive_slow: number;
  }
  interface Parallel {
    pp?: number;
    dp?: number | null;
    tp?: number;
  }
  interface Phase {
    name: string;
    start: number;
    end: number | null;
  }
  interface Placement {
    node: string;
    ranks: number[];
  }
  interface Plan {
    job: string;
    generation: number;
    schedule: string;
    micro_batches: number;
    axes: any[][];
    stages: Layers[];
    orders: string[][];
    replicas?: number[][];
  }
  interface Planned {
    step_seconds: number;
    ratio: number | null;
    slower_since: number | null;
    where: string;
  }
  interface Pod {
    name: string;
    namespace: string;
    uid: string;
  }
  interface Predicted {
    job: string;
    name: string;
    step: number;
    times_of: number;
    schedule: string;
    own_order: boolean;
    zero: number;
    measured_s: number;
    predicted_s: number;
    measured_bubble: number;
    predicted_bubble: number;
    incomplete: number[];
    left_out: number;
    text: string;
    ranks: LateRank[];
    times: ActionTime[];
    kinds: string[];
    lane: number[];
    kind: number[];
    stage: number[];
    micro_batch: number[];
    turn: number[];
    start: number[];
    took: number[];
  }
  interface Problem {
    error: string;
  }
  interface Program {
    target: string;
    args: string[];
    module: boolean;
  }
  interface ProgramSpec {
    target: string;
    args?: string[];
    module?: boolean;
    cwd?: string;
    env?: Record<string, string>;
    hooks?: boolean;
    warm?: boolean;
    executable?: boolean;
    virtual_local_rank?: boolean;
    log_dir?: string;
    redirects?: string;
    stdin?: string;
    preload?: string[];
  }
  interface Ranks {
    rank: number[];
    node: number[];
    pp: (number | null)[];
    dp: (number | null)[];
    tp: (number | null)[];
    step: (number | null)[];
    phase: number[];
    state: number[];
    step_seconds: (number | null)[];
    progress_age: (number | null)[];
    mfu: (number | null)[];
    part_seconds: Record<string, (number | null)[]>;
    memory_bytes: (number | null)[];
    operation: number[];
    nodes: string[];
    phases: string[];
    states: string[];
    operations: string[];
    sizes: number[] | null;
  }
  interface RestartSpec {
    dump?: boolean;
  }
  interface RunbookEntry {
    kind: string;
    means: string;
    does: string;
    you: string;
  }
  interface SaidBy {
    masked: string;
    ranks: number[];
    lines: number;
    first: SaidFirst | null;
  }
  interface SaidFirst {
    rank: number;
    node: string;
    at: number;
    generation: number;
  }
  interface SizedLayout {
    nodes: number;
    throughput: number;
    args?: string[];
    text?: string;
    parallel?: Parallel | null;
  }
  interface SlowPoints {
    at: number[];
    share: number[];
    ratio: (number | null)[];
  }
  interface SomeRanks {
    rank?: number[];
    node?: number[];
    pp?: (number | null)[];
    dp?: (number | null)[];
    tp?: (number | null)[];
    step?: (number | null)[];
    phase?: number[];
    state?: number[];
    step_seconds?: (number | null)[];
    progress_age?: (number | null)[];
    mfu?: (number | null)[];
    part_seconds?: Record<string, (number | null)[]>;
    memory_bytes?: (number | null)[];
    operation?: number[];
    nodes?: string[];
    phases?: string[];
    states?: string[];
    operations?: string[];
    sizes?: number[] | null;
  }
  interface Spent {
    wall: number;
    productive: number;
    unsaved: number;
    queued: number;
    lost: Record<string, number | null>;
    last_hour: number | null;
    last_day: number | null;
  }
  interface StackRow {
    depth: number;
    ranks: string;
    frame: string;
  }
  interface Stacks {
    at: number;
    job: string;
    generation: number;
    missing: Record<string, string>;
    states: Record<string, string>;
    rows: StackRow[];
  }
  interface Status {
    version: number;
    now: number;
    started_at: number;
    job: Job | null;
    jobs: JobBrief[];
    nodes: Record<string, string>;
    counts: Record<string, number>;
    incidents: Incident[];
    open_incidents: number;
  }
  interface StepAccount {
    text: string;
    step: string;
    unit: string;
    parts: AccountPart[];
  }
  interface StepBytes {
    pp?: number;
    dp?: number;
    tp?: number;
  }
  interface Steps {
    step: number[];
    loss: (number | null)[];
    seconds: (number | null)[];
    tokens: (number | null)[];
    at: (number | null)[];
    generation: number[];
    mfu: (number | null)[];
    grad_norm: (number | null)[];
  }
  interface StepsAround {
    first: number;
    last: number;
    generation: number;
  }
  interface StopSpec {
    grace?: number;
  }
  interface Stored {
    at: number;
    stored: number;
  }
  interface Submitted {
    id: string;
  }
  interface Then {
    job: string;
    at: number;
    kept_at: number;
    state: string;
    reason: string;
    step: number;
    max_steps: number;
    tokens_per_s: number | null;
    step_seconds: number | null;
    loss: number | null;
    mfu: number | null;
    goodput: number | null;
    at_risk: number | null;
    stored: number | null;
    spares: number;
    restarts: number;
    generation: number;
    nnodes: number;
    world_size: number;
    doubtful: Record<string, string>;
    doubtful_many: number;
    health: HealthsThen;
    incidents: IncidentThen[];
  }
  interface Traffic {
    node: string;
    nics: NicTraffic[];
  }
  interface TrafficBesidePlan {
    planned_bytes: number;
    off_plan: OffPlan[];
  }
  interface Verdict {
    node: string;
    check: string;
    grade: "pass" | "degraded" | "fail" | "unable";
    severity: "info" | "warning" | "critical";
    metric: string;
    component: string;
    value: number | null;
    unit: string;
    bar: number | null;
    against: string;
    baseline: number | null;
    baseline_n: number;
    baseline_since: number;
    text: string;
    evidence: any;
    action: string;
  }
  interface WholeIncident {
    id: string | number;
    job: string | null;
    kind: string;
    culprit: string;
    severity: "info" | "warning" | "critical";
    state: "open" | "recovering" | "closed" | "failed";
    summary: string;
    opened: number;
    closed: number | null;
    action: string | null;
    reason: string | null;
    detect_s: number | null;
    recover_s: number | null;
    source: string | null;
    restore_s: number | null;
    restored_bytes: number | null;
    restore_sent_bytes?: number | null;
    imports_s?: number | null;
    hint?: string | null;
    generation_from: number | null;
    generation_to: number | null;
    step_at_fault: number | null;
    step_resumed: number | null;
    phases: Phase[];
    findings: Finding[];
    stacks: Stacks | null;
    around: StepsAround | null;
    earlier: EarlierIncident[];
  }
}
