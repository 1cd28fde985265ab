"""Checks that S3 itself isolates tenants, on a server that enforces IAM.

    terraform/tests/run

MiniStack runs on a free port of 127.0.0.1, with TLS because the bucket requires it.
Terraform applies examples/localstack to it. Then the tests make raw S3 calls with a
session's credentials. No code of skillfs is involved, so only S3 can refuse them.

The calls are in attempts.json; simulate.mjs evaluates the same calls without a server.
TF_MIRROR names a directory of Terraform providers, for when the registry is unreachable.
SKILLFS names the program, which then also opens sessions and is run in one. While it is
still being built, SKILLFS_BUILT names a file that is created when the build is done.
"""

import concurrent.futures
import datetime
import json
import os
import pathlib
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest

boto3 = pytest.importorskip("boto3", reason="boto3 is not installed: pip install -r requirements.txt")
trustme = pytest.importorskip("trustme", reason="trustme is not installed: pip install -r requirements.txt")
pytest.importorskip("ministack", reason="ministack is not installed: pip install -r requirements.txt")
from botocore.config import Config
from botocore.exceptions import ClientError

from policy import session_policy

HERE = pathlib.Path(__file__).resolve().parent
MODULE = HERE.parent
# The index of a plain library.
PLAIN_INDEX = b'{"format":1,"kind":"plain","id":"x","release":0,"releases":[]}'
ATTEMPTS = json.loads((HERE / "attempts.json").read_text())
SESSION = ATTEMPTS["session"]
ACCOUNT = "000000000000"
BUCKET = "skillfs-local"
SERVICE = f"arn:aws:iam::{ACCOUNT}:user/service"

# Exit codes of skillfs.
NOT_FOUND, REFUSED = 3, 4

# The maximum length of a session policy.
STS_LIMIT = 2048
UUID = "9f1c2d34-5a6b-4c7d-8e9f-0a1b2c3d4e5f"
SIZES = {
    "short": ("acme-skillfs", ("u1", "t1", "k1"), "acme"),
    "typical": ("acme-skillfs-production", ("auth0|65f1c0ffee65f1c0ffee65f1", UUID, UUID), "notaries-madrid"),
    "uuids": ("acme-skillfs-production", (UUID, UUID, UUID), UUID),
    "longest": ("b" * 63, ("u" * 128, "t" * 128, "k" * 128), "l" * 128),
}


# --- fixtures -----------------------------------------------------------------


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """MiniStack with TLS and AUTH=true: its URL, and the path of its CA certificate."""
    directory = tmp_path_factory.mktemp("server")
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    authority.cert_pem.write_to_path(directory / "ca.pem")
    certificate.private_key_pem.write_to_path(directory / "key.pem")
    with open(directory / "cert.pem", "wb") as chain:
        for blob in certificate.cert_chain_pems:
            chain.write(blob.bytes())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
        # Without BIND_HOST, it would listen on all interfaces.
        "BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port), "AUTH": "true", "SERVICES": "s3,iam,sts,kms",
        "USE_SSL": "1", "MINISTACK_SSL_CERT": str(directory / "cert.pem"), "MINISTACK_SSL_KEY": str(directory / "key.pem"),
        "LOG_LEVEL": "WARNING", "TMPDIR": str(directory),
    }
    with open(directory / "log", "wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "ministack"], env=environment, cwd=directory, stdout=log, stderr=log)
    url = f"https://127.0.0.1:{port}"
    try:
        until = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"{url}/_ministack/health", context=trusting(directory / "ca.pem"), timeout=2).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > until:
                    pytest.fail("MiniStack did not start:\n" + (directory / "log").read_text()[-2000:])
                time.sleep(0.1)
        yield url, directory / "ca.pem"
    finally:
        process.terminate()
        try:
            # It waits for open connections, which may be closed safely.
            process.wait(2)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def trusting(authority):
    return ssl.create_default_context(cafile=str(authority))


@pytest.fixture(scope="session")
def terraform(tmp_path_factory):
    """Applies an example with Terraform in the background."""
    program = shutil.which(os.environ.get("TERRAFORM", "terraform"))
    if not program:
        pytest.skip("terraform is not on the PATH; install Terraform 1.9 or newer")
    # Terraform writes to the directories that it reads, so use a copy.
    directory = tmp_path_factory.mktemp("module") / "terraform"
    ignored = shutil.ignore_patterns("tests", ".terraform", ".terraform.lock.hcl", "*.tfstate*")
    shutil.copytree(MODULE, directory, ignore=ignored)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment |= {"TF_IN_AUTOMATION": "1", "TF_INPUT": "0", "CHECKPOINT_DISABLE": "1", "AWS_EC2_METADATA_DISABLED": "true"}
    if mirror := os.environ.get("TF_MIRROR"):
        config = directory / "mirror.tfrc"
        config.write_text("provider_installation {\n  filesystem_mirror {\n    path = %s\n  }\n}\n" % json.dumps(mirror))
        environment["TF_CLI_CONFIG_FILE"] = str(config)

    def apply(example, variables, **more):
        """Applies an example, checks that a second plan is empty, and returns the outputs."""
        def run(*arguments):
            assert not ending.is_set(), "interrupted"
            # SIGKILL would leave its provider processes running, so use SIGTERM.
            with subprocess.Popen([program, *arguments], cwd=directory / "examples" / example, env={**environment, **more},
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
                running.add(process)
                stdout, stderr = process.communicate()
                running.discard(process)
            return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)

        init = run("init", "-no-color")
        if init.returncode:
            pytest.skip("terraform init found no AWS provider; TF_MIRROR names a directory of them:\n" + init.stderr[-800:])
        given = [f"-var={name}={value}" for name, value in variables.items()]
        applied = run("apply", "-auto-approve", "-no-color", *given)
        assert applied.returncode == 0, applied.stderr
        planned = run("plan", "-detailed-exitcode", "-no-color", *given)
        assert planned.returncode == 0, f"a second apply would change something:\n{planned.stdout}{planned.stderr}"
        return {name: output["value"] for name, output in json.loads(run("output", "-json").stdout).items()}

    running, ending = set(), threading.Event()
    with concurrent.futures.ThreadPoolExecutor() as threads:
        try:
            yield lambda *arguments, **more: threads.submit(apply, *arguments, **more)
        finally:
            ending.set()
            for process in list(running):
                process.terminate()


@pytest.fixture(scope="session")
def applied(server, terraform):
    """Both examples, applied concurrently, because each waits a minute for lifecycle rules."""
    url, authority = server
    one = json.dumps([SERVICE])
    return {
        "localstack": terraform("localstack", {"endpoint_url": url, "ca_bundle": authority, "bucket_name": BUCKET, "service_arn": SERVICE}),
        # With the longest valid name, a KMS key and access logs.
        "complete": terraform(
            "complete", {"region": "us-east-1", "bucket_name": "b" * 58, "service_role_arns": one, "administrator_arns": one, "auditor_arns": one},
            AWS_ENDPOINT_URL=url, AWS_CA_BUNDLE=str(authority), AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test"),
    }


@pytest.fixture(scope="session")
def deployed(applied):
    """The outputs of examples/localstack after applying it."""
    return applied["localstack"].result()


class Caller:
    """Clients with one set of credentials."""

    def __init__(self, server, access, secret, token=None):
        self.url, self.authority = server
        self.access, self.secret = access, secret
        # No retries and no ambient settings, because the first response is the one to check.
        config = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}, signature_version="v4")
        s3_config = config.merge(Config(signature_version="s3v4"))
        for service in ("s3", "sts", "iam"):
            setattr(self, service, boto3.client(
                service, endpoint_url=self.url, verify=str(self.authority), region_name="us-east-1",
                aws_access_key_id=access, aws_secret_access_key=secret, aws_session_token=token,
                config=s3_config if service == "s3" else config,
            ))


@pytest.fixture(scope="session")
def root(server, deployed):
    """The root user of the account, which MiniStack never refuses."""
    return Caller(server, "test", "test")


@pytest.fixture(scope="session")
def service(server, root):
    """The product's own service: a user that may only assume roles."""
    root.iam.create_user(UserName="service")
    allow = {"Effect": "Allow", "Action": "sts:AssumeRole", "Resource": f"arn:aws:iam::{ACCOUNT}:role/*"}
    root.iam.put_user_policy(UserName="service", PolicyName="assume",
                             PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [allow]}))
    key = root.iam.create_access_key(UserName="service")["AccessKey"]
    return Caller(server, key["AccessKeyId"], key["SecretAccessKey"])


@pytest.fixture(scope="session")
def assume(server, service, deployed):
    def assume(role, policy=None):
        scope = {"Policy": policy} if policy else {}
        arn = deployed.get(f"{role}_role_arn", f"arn:aws:iam::{ACCOUNT}:role/{role}")
        found = service.sts.assume_role(RoleArn=arn, RoleSessionName="test", **scope)["Credentials"]
        return Caller(server, found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"])

    return assume


@pytest.fixture(scope="session")
def web_app(root, assume):
    """A role outside of the module that may do anything in S3."""
    trust = {"Effect": "Allow", "Principal": {"AWS": SERVICE}, "Action": "sts:AssumeRole"}
    everything = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
    root.iam.create_role(RoleName="web-app", AssumeRolePolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [trust]}))
    root.iam.put_role_policy(RoleName="web-app", PolicyName="everything",
                             PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [everything]}))
    return assume("web-app")


class Program:
    """skillfs in the session SESSION, with the service's credentials and no other settings."""

    def __init__(self, path, service, role, directory):
        identity = [f"--{name}={SESSION[name]}" for name in ("user", "thread", "ticket")]
        identity += [f"--library={library}" for library in SESSION["libraries"]]
        self.command = [path, f"--bucket={BUCKET}", f"--endpoint-url={service.url}", f"--role-arn={role}", *identity]
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "SKILLFS"))}
        self.environment |= {
            "AWS_ACCESS_KEY_ID": service.access, "AWS_SECRET_ACCESS_KEY": service.secret, "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true", "SSL_CERT_FILE": str(service.authority), "HOME": str(directory),
        }

    def __call__(self, *arguments, content=""):
        return subprocess.run([*self.command, *arguments], env=self.environment, input=content, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="session")
def program(service, deployed, tmp_path_factory):
    path = os.environ.get("SKILLFS")
    if not path:
        pytest.skip("SKILLFS is not set")
    built = os.environ.get("SKILLFS_BUILT")
    until = time.monotonic() + 1800
    while built and not os.path.exists(built):
        assert time.monotonic() < until, f"{path} was not built within half an hour"
        time.sleep(0.5)
    return Program(path, service, deployed["agents_role_arn"], tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session", params=["exact", "compact", "program"])
def agent(request, server, assume):
    """Credentials for SESSION: with either form of the session policy, or as returned by skillfs."""
    if request.param != "program":
        return assume("agents", session_policy(BUCKET, compact=request.param == "compact", **SESSION))
    answer = request.getfixturevalue("program")("credentials")
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert found["Version"] == 1
    # ISO 8601, as the AWS CLI expects it.
    assert datetime.datetime.fromisoformat(found["Expiration"]) > datetime.datetime.now(datetime.timezone.utc)
    return Caller(server, found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"])


def seed(root, bucket):
    """Restores objects that are missing or were changed, and deletes all others."""
    found = {entry["Key"]: entry["Size"] for entry in root.s3.list_objects_v2(Bucket=bucket).get("Contents", [])}
    for key in ATTEMPTS["objects"]:
        body = PLAIN_INDEX if key.endswith("/index.json") else f"this is {key}".encode()
        if found.pop(key, None) != len(body):
            root.s3.put_object(Bucket=bucket, Key=key, Body=body)
    for key in found:
        root.s3.delete_object(Bucket=bucket, Key=key)


def state(root):
    """Returns all versions and delete markers, which show any change."""
    pages = root.s3.get_paginator("list_object_versions").paginate(Bucket=BUCKET)
    return [(entry["Key"], entry["VersionId"], entry.get("ETag"))
            for page in pages for entry in page.get("Versions", []) + page.get("DeleteMarkers", [])]


# --- the calls ----------------------------------------------------------------


class Refused(Exception):
    """S3 denied access."""


def send(caller, url, method, body=None):
    request = urllib.request.Request(url, data=body, method=method)
    try:
        with urllib.request.urlopen(request, context=trusting(caller.authority), timeout=10) as answer:
            return answer.read()
    except urllib.error.HTTPError as error:
        text = error.read().decode(errors="replace")
        # A bad signature is a 403 as well, and would prove nothing.
        if error.code == 403 and "AccessDenied" in text:
            raise Refused(text) from None
        raise AssertionError(f"{error.code} {text}") from None


def presign(caller, operation, **arguments):
    return caller.s3.generate_presigned_url(operation, Params=arguments)


def keys_of(answer, prefix):
    keys = [entry["Key"] for entry in answer.get("Contents", [])]
    keys += [entry["Prefix"] for entry in answer.get("CommonPrefixes", [])]
    assert all(key.startswith(prefix) for key in keys), keys
    return keys


def do_list(caller, attempt, operation):
    arguments = {name: attempt[field] for name, field in
                 (("Prefix", "prefix"), ("Delimiter", "delimiter"), ("StartAfter", "start_after")) if field in attempt}
    return keys_of(getattr(caller.s3, operation)(Bucket=attempt["bucket"], **arguments), attempt.get("prefix", ""))


def do_delete_many(caller, attempt):
    answer = caller.s3.delete_objects(Bucket=attempt["bucket"], Delete={"Objects": [{"Key": key} for key in attempt["keys"]]})
    denied = {error["Key"] for error in answer.get("Errors", []) if error["Code"] == "AccessDenied"}
    if denied >= set(attempt.get("foreign", attempt["keys"])):
        raise Refused(str(denied))
    assert not answer.get("Errors"), answer["Errors"]


def do_multipart(caller, attempt, end="complete", source=None):
    place = {"Bucket": attempt["bucket"], "Key": attempt["key"]}
    place["UploadId"] = caller.s3.create_multipart_upload(**place)["UploadId"]
    try:
        if source:
            origin = {"Bucket": attempt["bucket"], "Key": source}
            tag = caller.s3.upload_part_copy(**place, PartNumber=1, CopySource=origin)["CopyPartResult"]["ETag"]
        else:
            tag = caller.s3.upload_part(**place, PartNumber=1, Body=b"part")["ETag"]
        assert len(caller.s3.list_parts(**place)["Parts"]) == 1
    except ClientError:
        caller.s3.abort_multipart_upload(**place)
        raise
    if end == "abort":
        caller.s3.abort_multipart_upload(**place)
    else:
        caller.s3.complete_multipart_upload(**place, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": tag}]})


def version_of(attempt):
    found = attempt["root"].s3.list_object_versions(Bucket=attempt["bucket"], Prefix=attempt["key"])["Versions"]
    return next(entry["VersionId"] for entry in found if entry["Key"] == attempt["key"])


def plain(operation, **arguments):
    """A call on one object."""
    return lambda c, a: getattr(c.s3, operation)(Bucket=a["bucket"], Key=a["key"], **arguments)


def bucket_call(operation, **arguments):
    return lambda c, a: getattr(c.s3, operation)(Bucket=a["bucket"], **arguments)


def open_policy(bucket):
    statement = {"Effect": "Allow", "Principal": {"AWS": f"arn:aws:iam::{ACCOUNT}:root"}, "Action": "s3:*",
                 "Resource": f"arn:aws:s3:::{bucket}/*"}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


CALLS = {
    "get": lambda c, a: c.s3.get_object(Bucket=a["bucket"], Key=a["key"])["Body"].read(),
    "head": plain("head_object"),
    "put": plain("put_object", Body=b"written"),
    "delete": plain("delete_object"),
    "delete_many": do_delete_many,
    "copy": lambda c, a: c.s3.copy_object(Bucket=a["bucket"], Key=a["key"], CopySource={"Bucket": a["bucket"], "Key": a["source"]}),
    "part_copy": lambda c, a: do_multipart(c, a, source=a["source"]),
    "multipart": do_multipart,
    "multipart_abort": lambda c, a: do_multipart(c, a, end="abort"),
    "list": lambda c, a: do_list(c, a, "list_objects_v2"),
    "list_v1": lambda c, a: do_list(c, a, "list_objects"),
    "presigned_get": lambda c, a: send(c, presign(c, "get_object", Bucket=a["bucket"], Key=a["key"]), "GET"),
    "presigned_put": lambda c, a: send(c, presign(c, "put_object", Bucket=a["bucket"], Key=a["key"]), "PUT", b"written"),
    "presigned_delete": lambda c, a: send(c, presign(c, "delete_object", Bucket=a["bucket"], Key=a["key"]), "DELETE"),
    "presigned_list": lambda c, a: send(c, presign(c, "list_objects_v2", Bucket=a["bucket"], Prefix=a["prefix"]), "GET"),
    "put_acl": plain("put_object_acl", ACL="bucket-owner-full-control"),
    "get_tagging": plain("get_object_tagging"),
    "put_tagging": plain("put_object_tagging", Tagging={"TagSet": [{"Key": "a", "Value": "b"}]}),
    "get_attributes": plain("get_object_attributes", ObjectAttributes=["ETag"]),
    "get_version": lambda c, a: c.s3.get_object(Bucket=a["bucket"], Key=a["key"], VersionId=version_of(a)),
    "delete_version": lambda c, a: c.s3.delete_object(Bucket=a["bucket"], Key=a["key"], VersionId=version_of(a)),
    "list_versions": lambda c, a: c.s3.list_object_versions(Bucket=a["bucket"], Prefix=a["prefix"]),
    "list_uploads": bucket_call("list_multipart_uploads"),
    "head_bucket": bucket_call("head_bucket"),
    "get_bucket_policy": bucket_call("get_bucket_policy"),
    "put_bucket_policy": lambda c, a: c.s3.put_bucket_policy(Bucket=a["bucket"], Policy=open_policy(a["bucket"])),
    "delete_bucket_policy": bucket_call("delete_bucket_policy"),
    "get_bucket_acl": bucket_call("get_bucket_acl"),
    "put_bucket_acl": bucket_call("put_bucket_acl", ACL="private"),
    "put_versioning": bucket_call("put_bucket_versioning", VersioningConfiguration={"Status": "Suspended"}),
    "put_lifecycle": bucket_call("put_bucket_lifecycle_configuration", LifecycleConfiguration={"Rules": [
        {"ID": "all", "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 1}}]}),
    "delete_lifecycle": bucket_call("delete_bucket_lifecycle"),
    "put_encryption": bucket_call("put_bucket_encryption", ServerSideEncryptionConfiguration={"Rules": [
        {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]}),
    "delete_public_access_block": bucket_call("delete_public_access_block"),
    "put_notification": bucket_call("put_bucket_notification_configuration", NotificationConfiguration={}),
    "put_replication": bucket_call("put_bucket_replication", ReplicationConfiguration={
        "Role": f"arn:aws:iam::{ACCOUNT}:role/any",
        "Rules": [{"Status": "Enabled", "Prefix": "", "Destination": {"Bucket": "arn:aws:s3:::elsewhere"}}]}),
    "put_cors": bucket_call("put_bucket_cors", CORSConfiguration={"CORSRules": [{"AllowedMethods": ["GET"], "AllowedOrigins": ["*"]}]}),
    "delete_bucket": bucket_call("delete_bucket"),
    "create_bucket": lambda c, a: c.s3.create_bucket(Bucket="made-by-an-agent"),
    "list_buckets": lambda c, a: c.s3.list_buckets(),
    "assume_administrators": lambda c, a: c.sts.assume_role(RoleArn=f"arn:aws:iam::{ACCOUNT}:role/{BUCKET}-administrators", RoleSessionName="attempt"),
    "assume_agents": lambda c, a: c.sts.assume_role(RoleArn=f"arn:aws:iam::{ACCOUNT}:role/{BUCKET}-agents", RoleSessionName="attempt"),
    "list_roles": lambda c, a: c.iam.list_roles(),
}


def attempt(caller, what, root, bucket=BUCKET):
    """Makes the call. Raises `Refused` if access is denied; any other exception is a failure."""
    try:
        return CALLS[what["call"]](caller, {**what, "bucket": bucket, "root": root})
    except ClientError as error:
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        # The response to HEAD has no body, so the status is the only error code.
        if status == 403 and error.response["Error"]["Code"] in ("AccessDenied", "403", "Forbidden"):
            raise Refused(str(error)) from None
        raise


def each(*names):
    attempts = [what for name in names for what in ATTEMPTS[name]]
    return pytest.mark.parametrize("what", attempts, ids=[what["id"] for what in attempts])


# --- the tests ----------------------------------------------------------------


def test_the_template_and_the_function_agree(deployed):
    assert session_policy(BUCKET, **SESSION) == deployed["session_policies"]["exact"]
    assert session_policy(BUCKET, compact=True, **SESSION) == deployed["session_policies"]["compact"]


@each("allowed")
def test_own_prefixes_are_accessible(agent, root, what):
    seed(root, BUCKET)
    attempt(agent, what, root)


@each("refused")
def test_foreign_prefixes_are_refused(agent, root, what):
    seed(root, BUCKET)
    before = state(root)
    with pytest.raises(Refused):
        attempt(agent, what, root)
    # S3 decides for each key of DeleteObjects, so the session's own keys may be deleted.
    # (MiniStack refuses the entire request because of one key.)
    own = set(what.get("keys", [])) - set(what.get("foreign", what.get("keys", [])))
    assert [entry for entry in state(root) if entry[0] not in own] == [entry for entry in before if entry[0] not in own]


@each("administrators_only")
def test_only_administrators_publish(web_app, root, what):
    """The bucket policy refuses even a principal that may do anything in S3."""
    seed(root, BUCKET)
    before = state(root)
    with pytest.raises(Refused):
        attempt(web_app, what, root)
    assert state(root) == before


@each("anybody")
def test_others_can_write_to_user_skills(web_app, root, what):
    seed(root, BUCKET)
    attempt(web_app, what, root)


def test_attempts_cover_all_calls():
    assert len(ATTEMPTS["refused"]) >= 40
    assert {"threads/t10/secret.md", "u10/skills/a/SKILL.md"} <= {what.get("key") for what in ATTEMPTS["refused"]}
    assert set(CALLS) == {what["call"] for what in ATTEMPTS["refused"] + ATTEMPTS["allowed"]}


@pytest.fixture(scope="session")
def control(root):
    root.s3.create_bucket(Bucket="skillfs-control")
    root.s3.put_bucket_versioning(Bucket="skillfs-control", VersioningConfiguration={"Status": "Enabled"})
    return "skillfs-control"


@each("refused", "administrators_only")
def test_refused_calls_are_well_formed(root, service, control, what):
    """Makes the same call with permission: as the root user, or as the service to assume roles."""
    seed(root, control)
    try:
        attempt(service if what["call"].startswith("assume_") else root, what, root, bucket=control)
    except ClientError as error:
        # The call may still fail because something is missing, empty or in the way.
        assert error.response["ResponseMetadata"]["HTTPStatusCode"] in (400, 404, 409), error


def test_only_the_service_can_open_sessions(root, deployed):
    """Not even the root user can, because the role trusts only the service."""
    with pytest.raises(ClientError, match="AccessDenied"):
        root.sts.assume_role(RoleArn=deployed["agents_role_arn"], RoleSessionName="attempt")


def test_a_missing_file_in_an_own_prefix_is_not_found(agent):
    with pytest.raises(ClientError) as caught:
        agent.s3.head_object(Bucket=BUCKET, Key="threads/t1/missing.md")
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 404


def test_a_policy_that_is_too_long_is_rejected(assume):
    bucket, (user, thread, ticket), library = SIZES["longest"]
    with pytest.raises(ClientError, match="2048"):
        assume("agents", session_policy(bucket, user, thread, ticket, [library]))


def test_dot_dot_is_not_resolved(agent, root):
    """To S3, `..` is an ordinary name, so such a key stays in the session's own thread."""
    seed(root, BUCKET)
    before = [entry for entry in state(root) if not entry[0].startswith("threads/t1/")]
    for key in ("threads/t1/../t10/planted.md", "threads/t1/%2e%2e/t10/planted.md", "threads/t1//../../u1/skills/planted.md"):
        try:
            agent.s3.put_object(Bucket=BUCKET, Key=key, Body=b"planted")
        except ClientError as error:
            assert error.response["ResponseMetadata"]["HTTPStatusCode"] in (400, 403), error
    assert [entry for entry in state(root) if not entry[0].startswith("threads/t1/")] == before


BARE = [
    ("get", {"key": "threads/t2/secret.md"}, True),
    ("get", {"key": "u2/skills/a/SKILL.md"}, True),
    ("list", {"prefix": "threads/t2/"}, True),
    ("list", {"prefix": "threads/"}, False),
    ("list", {"prefix": "tickets/"}, False),
    ("list", {"prefix": "shared/"}, False),
    ("list", {"prefix": ""}, False),
    ("list", {}, False),
    ("put", {"key": "u2/skills/a/SKILL.md"}, False),
    ("put", {"key": "u2/.skillfs/index.json"}, False),
    ("put", {"key": "tickets/k1/mail.txt"}, False),
    ("delete", {"key": "shared/acme/skills/b/SKILL.md"}, False),
    ("get", {"key": "u1/private/secret.txt"}, False),
    ("get_version", {"key": "threads/t1/notes.md"}, False),
    ("get_bucket_policy", {}, False),
]
ADMINISTRATORS = [
    ("get", {"key": "shared/acme/skills/b/SKILL.md"}, True),
    ("get", {"key": "u1/.skillfs/index.json"}, True),
    ("put", {"key": "u2/skills/new/SKILL.md"}, True),
    ("put", {"key": "shared/acme/.skillfs/index.json"}, True),
    ("put", {"key": "shared/x/skills/a/SKILL.md"}, True),
    ("put", {"key": "u1/.skillfs/index.json"}, True),
    ("copy", {"source": "u1/skills/a/SKILL.md", "key": "shared/x/skills/a/SKILL.md"}, True),
    ("delete", {"key": "u1/.skillfs/index.json"}, True),
    ("delete", {"key": "shared/acme/skills/b/SKILL.md"}, True),
    ("multipart", {"key": "shared/acme/skills/large.bin"}, True),
    ("list", {"prefix": "shared/"}, True),
    ("list_uploads", {}, True),
    ("get", {"key": "threads/t2/secret.md"}, False),
    ("get", {"key": "threads/t2/skills/secret.md"}, False),
    ("put", {"key": "threads/t2/skills/x.md"}, False),
    ("delete", {"key": "tickets/k1/mail.txt"}, False),
    ("delete_version", {"key": "shared/acme/skills/b/SKILL.md"}, False),
    ("put_bucket_policy", {}, False),
    ("put_versioning", {}, False),
    ("delete_bucket", {}, False),
]
AUDITORS = [
    ("get", {"key": "shared/acme/skills/b/SKILL.md"}, True),
    ("get", {"key": "u1/.skillfs/index.json"}, True),
    ("list", {"prefix": ""}, True),
    ("list_versions", {"prefix": ""}, True),
    ("get_bucket_policy", {}, True),
    ("get", {"key": "threads/t2/secret.md"}, False),
    ("get", {"key": "threads/t2/skills/secret.md"}, False),
    ("get", {"key": "tickets/k1/mail.txt"}, False),
    ("put", {"key": "shared/acme/skills/b/SKILL.md"}, False),
    ("delete", {"key": "u1/skills/a/SKILL.md"}, False),
    ("multipart", {"key": "shared/acme/skills/large.bin"}, False),
    ("put_bucket_policy", {}, False),
    ("put_lifecycle", {}, False),
]
ROLES = [(role, *case) for role, cases in (("agents", BARE), ("administrators", ADMINISTRATORS), ("auditors", AUDITORS)) for case in cases]


@pytest.mark.parametrize("role, call, where, allowed", ROLES, ids=[
    f"{role} {'may' if allowed else 'may not'} {call} {where.get('key', where.get('prefix', 'the bucket'))}" for role, call, where, allowed in ROLES])
def test_roles(assume, root, role, call, where, allowed):
    """Each role without a session policy."""
    seed(root, BUCKET)
    caller = assume(role)
    if allowed:
        attempt(caller, {"call": call, **where}, root)
    else:
        with pytest.raises(Refused):
            attempt(caller, {"call": call, **where}, root)


def test_a_session_policy_adds_nothing(assume, root):
    """A session policy that allows more than the role does not add permissions."""
    seed(root, BUCKET)
    everything = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
    caller = assume("agents", json.dumps(everything))
    for what in ({"call": "put", "key": "u1/skills/a/SKILL.md"}, {"call": "list"}, {"call": "get_bucket_policy"}, {"call": "list_roles"}):
        with pytest.raises(Refused):
            attempt(caller, what, root)


# --- skillfs in its own session -----------------------------------------------


def expect(answer, code=0):
    assert answer.returncode == code, f"exit code {answer.returncode}: {answer.stdout}{answer.stderr}"
    return answer.stdout


def test_the_program_works_in_its_session(program, root):
    seed(root, BUCKET)
    before = [entry for entry in state(root) if not entry[0].startswith("threads/t1/")]
    assert expect(program("ls", "/")).split() == ["/skills", "/ticket", "/workspace"]
    assert expect(program("ls", "-R", "/workspace")).split() == ["/workspace/docs", "/workspace/docs/plan.md", "/workspace/notes.md"]
    assert expect(program("read", "/workspace/notes.md")).strip() == "this is threads/t1/notes.md"
    assert expect(program("read", "/ticket/mail.txt")).strip() == "this is tickets/k1/mail.txt"
    assert expect(program("read", "/skills/a/SKILL.md")).strip() == "this is u1/skills/a/SKILL.md"
    assert expect(program("read", "/skills/b/SKILL.md")).strip() == "this is shared/acme/skills/b/SKILL.md"
    assert expect(program("skills", "list")).split()
    expect(program("write", "/workspace/new.md", content="one\n"))
    expect(program("append", "/workspace/new.md", content="two\n"))
    assert root.s3.get_object(Bucket=BUCKET, Key="threads/t1/new.md")["Body"].read() == b"one\ntwo\n"
    expect(program("rm", "/workspace/new.md"))
    # A missing file in the session's own prefix is not found, rather than refused.
    expect(program("read", "/workspace/new.md"), NOT_FOUND)
    assert [entry for entry in state(root) if not entry[0].startswith("threads/t1/")] == before


@pytest.mark.parametrize("arguments", [
    ("write", "/ticket/x"), ("append", "/ticket/mail.txt"), ("rm", "/ticket/mail.txt"),
    ("write", "/skills/x"), ("append", "/skills/a/SKILL.md"), ("rm", "/skills/a/SKILL.md"), ("rm", "-r", "/skills/b"),
    ("mv", "/skills/a", "/workspace/a"),
], ids=" ".join)
def test_the_program_refuses(program, root, arguments):
    seed(root, BUCKET)
    before = state(root)
    expect(program(*arguments, content="x"), REFUSED)
    assert state(root) == before


# --- sizes --------------------------------------------------------------------


@pytest.mark.parametrize("name, compact, size, libraries", [
    ("short", False, 745, 9), ("short", True, 583, 26),
    ("typical", False, 1114, 5), ("typical", True, 852, 14),
    ("uuids", False, 1222, 3), ("uuids", True, 906, 9),
    ("longest", False, 2606, 0), ("longest", True, 1842, 1),
])
def test_how_many_libraries_fit(name, compact, size, libraries):
    """Checks the figures in the README: the size with one library, and how many fit."""
    bucket, (user, thread, ticket), library = SIZES[name]

    def length(count):
        return len(session_policy(bucket, user, thread, ticket, [library] * count, compact=compact))

    assert length(1) == size
    assert length(libraries) <= STS_LIMIT < length(libraries + 1)


def test_the_complete_example_applies(applied):
    assert applied["complete"].result()["agents_role_arn"].endswith(f"role/{'b' * 49}-agents")
