#!/usr/bin/env node
// Evaluates the module's policies for every attempt in attempts.json, without a server.
//
//   node simulate.mjs RENDERED.json [WITHOUT_ADMINISTRATORS.json]
//
// RENDERED.json is the output of `terraform output -json` in examples/localstack, or of
// `terraform show -json` for a plan there, which needs neither a server nor an account.
// `terraform/check` creates one plan with and one without administrators.
import { readFileSync } from "node:fs";
import { runSimulation } from "@cloud-copilot/iam-simulate";

const account = "000000000000";
const { session, allowed, refused, administrators_only, anybody } = JSON.parse(readFileSync(new URL("attempts.json", import.meta.url)));

const [file, without] = process.argv.slice(2);
if (!file) {
  console.error("usage: node simulate.mjs RENDERED.json [WITHOUT_ADMINISTRATORS.json]   (from `terraform output -json` or `terraform show -json PLAN`)");
  process.exit(2);
}
function read(rendered) {
  const json = JSON.parse(readFileSync(rendered));
  return json.planned_values?.outputs ?? json;
}
const outputs = read(file);
const policy = (name) => JSON.parse(outputs.policies.value[name]);
const bucket = outputs.bucket_name?.value ?? policy("bucket").Statement[0].Resource.find((arn) => !arn.endsWith("/*")).split(":::")[1];
const bucketArn = `arn:aws:s3:::${bucket}`;

// --- the actions that each call requires --------------------------------------

const object = (action) => (attempt) => [{ action, resource: `${bucketArn}/${attempt.key}` }];
const onBucket = (action) => (attempt) => [{
  action,
  resource: bucketArn,
  context: attempt.prefix === undefined ? {} : { "s3:prefix": attempt.prefix },
}];
const get = object("s3:GetObject");
const put = object("s3:PutObject");
const list = onBucket("s3:ListBucket");
const source = (attempt) => get({ key: attempt.source });
const role = (name) => () => [{ action: "sts:AssumeRole", resource: `arn:aws:iam::${account}:role/${bucket}-${name}` }];

const asks = {
  get, put, list,
  head: get,
  list_v1: list,
  delete: object("s3:DeleteObject"),
  // S3 decides for each key; none of the foreign ones may be allowed.
  delete_many: (attempt) => (attempt.foreign ?? attempt.keys).flatMap((key) => object("s3:DeleteObject")({ key })),
  copy: (attempt) => [...source(attempt), ...put(attempt)],
  part_copy: (attempt) => [...source(attempt), ...put(attempt)],
  multipart: (attempt) => [...put(attempt), ...object("s3:ListMultipartUploadParts")(attempt)],
  multipart_abort: (attempt) => [...put(attempt), ...object("s3:AbortMultipartUpload")(attempt)],
  presigned_get: get,
  presigned_put: put,
  presigned_list: list,
  presigned_delete: object("s3:DeleteObject"),
  put_acl: object("s3:PutObjectAcl"),
  get_tagging: object("s3:GetObjectTagging"),
  put_tagging: object("s3:PutObjectTagging"),
  get_attributes: object("s3:GetObjectAttributes"),
  get_version: object("s3:GetObjectVersion"),
  delete_version: object("s3:DeleteObjectVersion"),
  list_versions: onBucket("s3:ListBucketVersions"),
  list_uploads: onBucket("s3:ListBucketMultipartUploads"),
  head_bucket: list,
  get_bucket_policy: onBucket("s3:GetBucketPolicy"),
  put_bucket_policy: onBucket("s3:PutBucketPolicy"),
  delete_bucket_policy: onBucket("s3:DeleteBucketPolicy"),
  get_bucket_acl: onBucket("s3:GetBucketAcl"),
  put_bucket_acl: onBucket("s3:PutBucketAcl"),
  put_versioning: onBucket("s3:PutBucketVersioning"),
  put_lifecycle: onBucket("s3:PutLifecycleConfiguration"),
  delete_lifecycle: onBucket("s3:PutLifecycleConfiguration"),
  put_encryption: onBucket("s3:PutEncryptionConfiguration"),
  delete_public_access_block: onBucket("s3:PutBucketPublicAccessBlock"),
  put_notification: onBucket("s3:PutBucketNotification"),
  put_replication: onBucket("s3:PutReplicationConfiguration"),
  put_cors: onBucket("s3:PutBucketCORS"),
  delete_bucket: onBucket("s3:DeleteBucket"),
  create_bucket: () => [{ action: "s3:CreateBucket", resource: "arn:aws:s3:::made-by-an-agent" }],
  list_buckets: () => [{ action: "s3:ListAllMyBuckets", resource: "*" }],
  assume_administrators: role("administrators"),
  assume_agents: role("agents"),
  list_roles: () => [{ action: "iam:ListRoles", resource: "*" }],
};

// --- simulation --------------------------------------------------------------

const sessionOf = (role, owner = account) => `arn:aws:sts::${owner}:assumed-role/${role}/session`;
// The value of aws:PrincipalArn on AWS: for a session, the ARN of its role.
const principalArn = (arn) => arn.replace(/^arn:aws:sts::(\d+):assumed-role\/([^/]+)\/.*$/, "arn:aws:iam::$1:role/$2");

async function decide(ask, { identity, sessionPolicy, resourcePolicy, context = {}, principal = sessionOf(`${bucket}-agents`) }) {
  const response = await runSimulation({
    request: {
      principal,
      action: ask.action,
      resource: { resource: ask.resource, accountId: account },
      contextVariables: { "aws:SecureTransport": "true", "aws:PrincipalArn": principalArn(principal), ...context, ...ask.context },
    },
    identityPolicies: identity ? [{ name: "role", policy: identity }] : [],
    sessionPolicy,
    resourcePolicy,
    serviceControlPolicies: [],
    resourceControlPolicies: [],
  }, {});
  if (response.resultType !== "single") {
    throw new Error(`${ask.action} on ${ask.resource}: ${JSON.stringify(response.errors ?? response)}`);
  }
  return response.overallResult === "Allowed";
}

async function all(asked, who) {
  for (const ask of asked) {
    let resourcePolicy;
    if (ask.resource.startsWith(bucketArn)) resourcePolicy = who.bucketPolicy ?? policy("bucket");
    if (ask.action === "sts:AssumeRole") resourcePolicy = JSON.parse(outputs.trust_policies.value[ask.resource.split("-").at(-1)]);
    if (!(await decide(ask, { resourcePolicy, ...who }))) return false;
  }
  return true;
}

let failures = 0;
let expected = 0;
function expect(condition, message) {
  if (condition) {
    expected += 1;
  } else {
    failures += 1;
    console.error(`not as expected: ${message}`);
  }
}

async function every(title, who) {
  const count = { allowed: 0, refused: 0 };
  for (const [attempts, wanted] of [[allowed, true], [refused, false]]) {
    for (const attempt of attempts) {
      const got = await all(asks[attempt.call](attempt), who);
      count[got ? "allowed" : "refused"] += got === wanted ? 1 : 0;
      expect(got === wanted, `${title}: ${attempt.id} was ${got ? "allowed" : "refused"}`);
    }
  }
  console.log(`${title}: ${count.allowed} of ${allowed.length} allowed, ${count.refused} of ${refused.length} refused`);
}

const tags = (values) => Object.fromEntries(Object.entries(values).map(([name, value]) => [`aws:PrincipalTag/${name}`, value]));
const own = { user: session.user, thread: session.thread, ticket: session.ticket };
session.libraries.forEach((id, n) => { own[`library${n + 1}`] = id; });

await every("session tags", { identity: policy("agents_tagged"), context: tags(own) });
for (const [form, text] of Object.entries(outputs.session_policies.value)) {
  await every(`session policy, ${form}`, { identity: policy("agents_wide"), sessionPolicy: JSON.parse(text) });
}

// Fewer tags grant less access, never more.
{
  let open = 0;
  for (const attempt of [...allowed, ...refused]) {
    if (await all(asks[attempt.call](attempt), { identity: policy("agents_tagged") })) open += 1;
  }
  expect(open === 0, `without tags ${open} attempts were allowed`);
  console.log(`session tags, none given: ${open} of ${allowed.length + refused.length} allowed`);

  const { user, ...others } = own;
  for (const attempt of allowed) {
    const got = await all(asks[attempt.call](attempt), { identity: policy("agents_tagged"), context: tags(others) });
    const needsUser = [attempt.key, attempt.prefix, attempt.source].some((key) => key?.startsWith(`${user}/`));
    expect(got === !needsUser, `without a user: ${attempt.id} was ${got ? "allowed" : "refused"}`);
  }
}

// The bucket requires TLS from everyone.
let plain = 0;
for (const attempt of allowed) {
  const got = await all(asks[attempt.call](attempt), {
    identity: policy("agents_tagged"),
    context: { ...tags(own), "aws:SecureTransport": "false" },
  });
  if (got) plain += 1;
  expect(!got, `without TLS: ${attempt.id} was allowed`);
}
console.log(`session tags, without TLS: ${plain} of ${allowed.length} allowed`);

// Writes to libraries by principals whose own policies allow everything in S3.
const everything = { Version: "2012-10-17", Statement: [{ Effect: "Allow", Action: "s3:*", Resource: "*" }] };
// Actions that no call in attempts.json uses.
const more = ["PutObjectRetention", "PutObjectLegalHold", "PutObjectVersionAcl", "PutObjectVersionTagging", "DeleteObjectTagging",
  "DeleteObjectVersionTagging", "AbortMultipartUpload", "ReplicateObject", "ReplicateDelete", "ReplicateTags"];
const libraryWrites = [
  ...administrators_only.map((attempt) => [attempt.id, asks[attempt.call](attempt)]),
  ...["shared/acme/skills/b/SKILL.md", "u1/.skillfs/index.json"].flatMap((key) =>
    more.map((action) => [`${action} ${key}`, object(`s3:${action}`)({ key })])),
];
const otherCalls = anybody.map((attempt) => [attempt.id, asks[attempt.call](attempt)]);

async function may(title, calls, wanted, who) {
  let count = 0;
  for (const [name, asked] of calls) {
    const got = await all(asked, { identity: everything, ...who });
    if (got === wanted) count += 1;
    expect(got === wanted, `${title}: ${name} was ${got ? "allowed" : "refused"}`);
  }
  console.log(`${title}: ${count} of ${calls.length} ${wanted ? "allowed" : "refused"}`);
}

const administrators = sessionOf(`${bucket}-administrators`);
const webApp = sessionOf("web-app");
await may("libraries, administrators", [...libraryWrites, ...otherCalls], true, { principal: administrators });
await may("libraries, administrators of a server that names the session", libraryWrites, true,
  { principal: administrators, context: { "aws:PrincipalArn": administrators } });
await may("libraries, a web app", libraryWrites, false, { principal: webApp });
await may("the rest, a web app", otherCalls, true, { principal: webApp });
await may("libraries, a user", libraryWrites, false, { principal: `arn:aws:iam::${account}:user/${bucket}-administrators` });
await may("libraries, a role that begins alike", libraryWrites, false, { principal: sessionOf(`${bucket}-administrators2`) });
await may("libraries, a role that ends alike", libraryWrites, false, { principal: sessionOf(`x-${bucket}-administrators`) });
await may("libraries, a session that is named alike", libraryWrites, false,
  { principal: `arn:aws:sts::${account}:assumed-role/web-app/${bucket}-administrators` });
await may("libraries, the auditors", libraryWrites, false, { principal: sessionOf(`${bucket}-auditors`) });
await may("libraries, the agents", [...libraryWrites, ["put a user's skill", put({ key: "u1/skills/a/SKILL.md" })]], false, {});
await may("all, administrators of another account", [...libraryWrites, ...otherCalls], false,
  { principal: sessionOf(`${bucket}-administrators`, "111111111111") });
if (without) {
  const bucketPolicy = JSON.parse(read(without).policies.value.bucket);
  await may("libraries, nobody is an administrator", libraryWrites, false, { principal: administrators, bucketPolicy });
  await may("the rest, nobody is an administrator", otherCalls, true, { principal: webApp, bucketPolicy });
}

// The tags that a session may be opened with, if the role reads them.
const trust = JSON.parse(outputs.trust_policies.value.agents);
if (trust.Statement.length > 1) {
  const cases = [
    ["own tags", own, true],
    ["no tags", {}, true],
    ["an e-mail address", { user: "ana@example.com" }, true],
    ["a path for a user", { user: "threads/t2" }, false],
    ["a path for a thread", { thread: "t1/../t2" }, false],
    ["a path for a library", { library1: "acme/skills/../../other" }, false],
    ["user threads", { user: "threads" }, false],
    ["user tickets", { user: "tickets" }, false],
    ["user shared", { user: "shared" }, false],
    ["an id that begins with a dot", { library2: "." }, false],
    ["a tag of another name", { ...own, admin: "yes" }, false],
  ];
  for (const [name, values, wanted] of cases) {
    const context = { "aws:TagKeys": Object.keys(values) };
    for (const [key, value] of Object.entries(values)) context[`aws:RequestTag/${key}`] = value;
    const got = await decide(
      { action: "sts:TagSession", resource: `arn:aws:iam::${account}:role/${bucket}-agents` },
      { resourcePolicy: trust, context, principal: `arn:aws:iam::${account}:user/service`, identity: {
        Version: "2012-10-17",
        Statement: [{ Effect: "Allow", Action: "sts:*", Resource: "*" }],
      } },
    );
    expect(got === wanted, `a session with ${name} was ${got ? "allowed" : "refused"}`);
  }
  console.log(`tags at AssumeRole: ${cases.length} cases`);
} else {
  console.log("tags at AssumeRole: not checked, this plan has agent_scoping = session_policy");
}

if (failures > 0) {
  console.error(`${failures} not as expected`);
  process.exit(1);
}
console.log(`${expected} cases as expected`);
