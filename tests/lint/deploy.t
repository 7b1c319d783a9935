#!/usr/bin/env python3
"""Goal: the container and the Kubernetes files are well formed, agree with each other, and give quire
options that it has. Method: a parser of tools/Containerfile; PyYAML and schemas written here, closed:
a field that they do not name is an error. Where
the package kubernetes-validate is, Kubernetes' own schemas as well. With
QUIRE_TEST_IMAGE=debian:12 buildah builds the container on that image as well, without CUDA."""

import glob
import json
import os
import re
import shutil
import subprocess
import sys

try:
    import yaml
except ImportError:
    other = "/usr/bin/python3"  # Debian's python3-yaml is for Debian's python
    if os.path.realpath(sys.executable) != os.path.realpath(other) and os.path.exists(other) and \
            "DEPLOY_AGAIN" not in os.environ:
        os.execve(other, [other, *sys.argv], dict(os.environ, DEPLOY_AGAIN="1"))
    print("1..0 # SKIP there is no PyYAML: apt-get install python3-yaml")
    sys.exit(0)

SRC = os.environ.get("srcdir", ".")
BUILD = os.environ.get("builddir", ".")
n = failed = 0


def ok(wrong, name):
    """Wrong: a list of what is."""
    global n, failed
    n += 1
    failed += bool(wrong)
    print("%s %d - %s" % ("not ok" if wrong else "ok", n, name))
    for w in wrong[:20]:
        print("# %s" % (w,))


def known_options():
    said = ""
    for program, args in (("quire", ["serve", "--help"]), ("quire-engine", ["--help"]),
                          ("quire-front", ["--help"])):
        said += subprocess.run([os.path.join(BUILD, program), *args], capture_output=True, text=True).stdout
    return {o.replace("_", "-") for o in re.findall(r"--([a-z][a-z0-9_-]*)", said)}


OPTIONS = known_options()


def strange(args):
    return [a for a in args if a.startswith("--") and
            a[2:].split("=")[0].replace("_", "-") not in OPTIONS]


# --- the container --------------------------------------------------------------------------------

KNOWN = {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "USER", "ENV", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT"}
with open(os.path.join(SRC, "tools", "Containerfile")) as f:
    text = re.sub(r"^#.*\n", "", f.read(), flags=re.M)
steps = [line.split(None, 1) for line in re.sub(r"\\\n\s*", "", text).splitlines() if line.strip()]
stages, wrong = [], []
for word, rest in steps:
    if word not in KNOWN:
        wrong.append("unknown instruction " + word)
    if word == "FROM":
        stages.append([])
    elif stages:
        stages[-1].append((word, rest))
ok(wrong, "Containerfile: every instruction is known")
ok([] if len(stages) == 2 else [len(stages)], "it has two stages")
args = dict(rest.split("=", 1) for word, rest in steps if word == "ARG")
ok([r for w, r in steps if w == "FROM" and re.search(r"\$\{(\w+)\}", r).group(1) not in args] +
   [v for k, v in args.items() if k.startswith("IMAGE") and (":" not in v or v.endswith(":latest"))],
   "images are arguments with a version")
last = {}
for word, rest in stages[-1]:
    last[word] = rest
ok([] if re.match(r"[1-9]\d*:[1-9]\d*$", last.get("USER", "")) else [last.get("USER")], "it runs without root")
entry = json.loads(last["ENTRYPOINT"])
ok(strange(entry) + ([] if entry[:2] == ["quire", "serve"] else [entry]), "its entry is quire serve")
ok([r for r in re.findall(r"tools/[a-z.-]+", text) if not os.path.exists(os.path.join(SRC, r))],
   "the files that it names are there")
ok([] if last["EXPOSE"] in entry else [last["EXPOSE"]], "the port is the one that it listens on")
image = os.environ.get("QUIRE_TEST_IMAGE")
if image and shutil.which("buildah"):
    built = subprocess.run(["buildah", "build", "-q", "--network", "host", "-f", "tools/Containerfile",
                            "--ignorefile", "tools/Containerfile.dockerignore", "--build-arg",
                            "IMAGE_BUILD=" + image, "--build-arg", "IMAGE_RUN=" + image, "--build-arg",
                            "CONFIGURE=--without-cuda", "."], capture_output=True, text=True, cwd=SRC)
    ok(built.stderr.splitlines()[-10:] if built.returncode else [], "buildah builds it on " + image)
else:
    n += 1
    print("ok %d - buildah builds it # SKIP no image is named in QUIRE_TEST_IMAGE (debian:12), or no buildah" % n)

# --- Kubernetes: schemas --------------------------------------------------------------------------
# A schema is a type, a tuple of allowed values, a one-element list (of what), a dict (fields; "name!"
# is required; "*" any name), or a function that says what is wrong.

NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?$")


def name(v):
    return None if isinstance(v, str) and NAME.match(v) and len(v) <= 63 else "no name"


def quantity(v):
    return None if isinstance(v, int) or re.match(r"\d+(\.\d+)?(m|[KMGT]i?)?$", str(v)) else "no quantity"


def port(v):
    return None if name(v) is None or (isinstance(v, int) and 0 < v < 65536) else "no port"


LABELS = {"*": str}
META = {"name!": name, "labels": LABELS, "namespace": name, "annotations": LABELS}
SELECTOR = {"matchLabels!": LABELS}
PROBE = {"httpGet!": {"path!": str, "port!": port}, "periodSeconds": int, "timeoutSeconds": int,
         "failureThreshold": int, "initialDelaySeconds": int}
CONTAINER = {
    "name!": name, "image!": str, "args": [str], "command": [str],
    "env": [{"name!": str, "value": str,
             "valueFrom": {"secretKeyRef!": {"name!": name, "key!": str}}}],
    "ports": [{"name!": name, "containerPort!": port, "protocol": ("TCP", "UDP")}],
    "startupProbe!": PROBE, "readinessProbe!": PROBE, "livenessProbe!": PROBE,
    "lifecycle!": {"preStop!": {"exec!": {"command!": [str]}}},
    "resources!": {"requests!": {"*": quantity}, "limits!": {"*": quantity}},
    "securityContext!": {"allowPrivilegeEscalation!": (False,), "readOnlyRootFilesystem!": (True,),
                         "capabilities!": {"drop!": [("ALL",)]}},
    "volumeMounts": [{"name!": name, "mountPath!": str, "readOnly": bool}]}
POD = {"terminationGracePeriodSeconds!": int, "automountServiceAccountToken": bool,
       "securityContext!": {"runAsNonRoot!": (True,), "runAsUser!": int, "runAsGroup": int, "fsGroup": int,
                            "seccompProfile!": {"type!": ("RuntimeDefault", "Localhost")}},
       "containers!": [CONTAINER],
       "volumes": [{"name!": name, "emptyDir": {"medium": ("Memory",), "sizeLimit": quantity},
                    "persistentVolumeClaim": {"claimName!": name, "readOnly": bool}}],
          "nodeSelector": LABELS, "tolerations": [dict], "affinity": {"podAntiAffinity": {
           "requiredDuringSchedulingIgnoredDuringExecution!": [
               {"topologyKey!": str, "labelSelector!": SELECTOR}]}}}
# An engine alone: no HTTP, so no probes.
NODE = dict(POD, **{"containers!": [{k: v for k, v in CONTAINER.items() if "Probe" not in k and k != "lifecycle!"}]})
POLICY = {"stabilizationWindowSeconds": int,
          "policies!": [{"type!": ("Pods", "Percent"), "value!": int, "periodSeconds!": int}]}
KINDS = {
    ("apps/v1", "Deployment"): {"spec!": {
        "replicas": int, "selector!": SELECTOR, "strategy": {"type": str, "rollingUpdate": {
            "maxSurge": int, "maxUnavailable": int}},
        "template!": {"metadata!": {"labels!": LABELS}, "spec!": POD}}},
    ("networking.k8s.io/v1", "NetworkPolicy"): {"spec!": {
        "podSelector!": SELECTOR, "policyTypes!": [("Ingress",)],
        "ingress!": [{"from": [{"podSelector!": SELECTOR}], "ports!": [{"port!": port}]}]}},
    ("v1", "Service"): {"spec!": {"selector!": LABELS, "type": str, "clusterIP": ("None",),
                                  "publishNotReadyAddresses": bool, "ports!": [
        {"name!": name, "port!": port, "targetPort!": port}]}},
    ("v1", "PersistentVolumeClaim"): {"spec!": {
        "accessModes!": [("ReadOnlyMany", "ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod")],
        "storageClassName": str, "resources!": {"requests!": {"storage!": quantity}}}},
    ("policy/v1", "PodDisruptionBudget"): {"spec!": {"selector!": SELECTOR, "maxUnavailable": int,
                                                     "minAvailable": int}},
    ("monitoring.coreos.com/v1", "ServiceMonitor"): {"spec!": {"selector!": SELECTOR, "endpoints!": [
        {"port!": name, "path": str, "interval": str}]}},
    ("autoscaling/v2", "HorizontalPodAutoscaler"): {"spec!": {
        "scaleTargetRef!": {"apiVersion!": str, "kind!": str, "name!": name},
        "minReplicas": int, "maxReplicas!": int, "metrics!": [{"type!": ("Pods",), "pods!": {
            "metric!": {"name!": str}, "target!": {"type!": ("AverageValue",), "averageValue!": quantity}}}],
        "behavior": {"scaleUp": POLICY, "scaleDown": POLICY}}},
}
KUSTOMIZATION = {"apiVersion!": ("kustomize.config.k8s.io/v1beta1",), "kind!": ("Kustomization",),
                 "resources!": [str], "images": [{"name!": str, "newName": str, "newTag": str}],
                 "secretGenerator": [{"name!": name, "literals": [str]}],
                 "labels": [{"pairs!": LABELS, "includeSelectors": bool}],
                 "patches": [{"target!": {"kind!": str, "name!": name}, "patch!": str}]}


def check(v, schema, at):
    """Yields what is wrong. No document is deeper than the schemas are."""
    if isinstance(schema, dict):
        if not isinstance(v, dict):
            yield at + ": not an object"
            return
        fields = {k.rstrip("!"): s for k, s in schema.items()}
        for k, s in schema.items():
            if k.endswith("!") and k[:-1] not in v:
                yield "%s: %s is missing" % (at, k[:-1])
        for k, x in v.items():
            if k not in fields and "*" not in fields:
                yield "%s: there is no field %s" % (at, k)
            else:
                yield from check(x, fields.get(k, fields.get("*")), "%s.%s" % (at, k))
    elif isinstance(schema, list):
        if not isinstance(v, list) or not v:
            yield at + ": not a list"
        for i, x in enumerate(v if isinstance(v, list) else []):
            yield from check(x, schema[0], "%s[%d]" % (at, i))
    elif isinstance(schema, tuple):
        if v not in schema:
            yield "%s: %r is none of %r" % (at, v, schema)
    elif isinstance(schema, type):
        if not isinstance(v, schema) or (schema is int and isinstance(v, bool)):
            yield "%s: %r is no %s" % (at, v, schema.__name__)
    else:
        said = schema(v)
        if said:
            yield "%s: %r is %s" % (at, v, said)


def read(path):
    with open(path) as f:
        return [d for d in yaml.safe_load_all(f) if d is not None]


folder = os.path.join(SRC, "tools", "kubernetes")
top = read(os.path.join(folder, "kustomization.yaml"))[0]
ok(list(check(top, KUSTOMIZATION, "kustomization")), "kustomization.yaml fits its schema")
there = {os.path.basename(p) for p in glob.glob(folder + "/*.yaml")} - {"kustomization.yaml", "adapter.yaml"}
ok(sorted(there ^ set(top["resources"])), "it lists the files that are there")
of = {}
for file in sorted(there):
    for d in read(os.path.join(folder, file)):
        key = (d.get("apiVersion"), d.get("kind"))
        schema = KINDS.get(key)
        ok(["no schema for %s %s" % key] if schema is None else
           list(check(d, dict({"apiVersion!": str, "kind!": str, "metadata!": META}, **schema), file)),
           "%s: %s fits its schema" % (file, key[1]))
        of[key[1]] = d

# --- do they agree? -------------------------------------------------------------------------------

pod = of["Deployment"]["spec"]["template"]
labels, spec = pod["metadata"]["labels"], pod["spec"]
box = spec["containers"][0]
selectors = {k: of[k]["spec"]["selector"] for k in ("Deployment", "Service", "PodDisruptionBudget")}
ok([k for k, s in selectors.items() if not s.get("matchLabels", s).items() <= labels.items()],
   "selectors find the pods")
monitor = of["ServiceMonitor"]["spec"]
service = of["Service"]
ok([] if monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items() and
   {e["port"] for e in monitor["endpoints"]} <= {p["name"] for p in service["spec"]["ports"]}
   else [monitor], "the ServiceMonitor finds the service and its port")
ports = {p["name"] for p in box["ports"]}
probes = [box[p + "Probe"] for p in ("startup", "readiness", "liveness")]
ok([p for p in probes if p["httpGet"]["port"] not in ports] +
   [p for p in service["spec"]["ports"] if p["targetPort"] not in ports], "probes and service name its port")
ok([] if str(box["ports"][0]["containerPort"]) == last["EXPOSE"] else [box["ports"]], "which the container opens")
volumes = {v["name"]: v for v in spec["volumes"]}
ok([m for m in box["volumeMounts"] if m["name"] not in volumes] +
   [v for v in volumes if v not in {m["name"] for m in box["volumeMounts"]}], "every volume is mounted")
claims = [v["persistentVolumeClaim"]["claimName"] for v in volumes.values() if "persistentVolumeClaim" in v]
ok([c for c in claims if c != of["PersistentVolumeClaim"]["metadata"]["name"]], "every claim is there")
secrets = {s["name"]: {x.split("=")[0] for x in s["literals"]} for s in top["secretGenerator"]}
ok([e for e in box["env"] if "valueFrom" in e and e["valueFrom"]["secretKeyRef"]["key"]
    not in secrets.get(e["valueFrom"]["secretKeyRef"]["name"], ())], "every secret is there")
ok([i for i in top["images"] if i["name"] != box["image"]], "the image is the one that is replaced")
ok(strange(box["args"]), "quire has the options")
used = set(re.findall(r"\$\((\w+)\)", " ".join(box["args"])))
ok(sorted(used - {e["name"] for e in box["env"]}), "the variables in them are set")
target = of["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
ok([] if (target["kind"], target["name"]) == ("Deployment", of["Deployment"]["metadata"]["name"]) else [target],
   "the autoscaler's target is there")
rules = read(os.path.join(folder, "adapter.yaml"))[0]["rules"]["custom"]
wanted = {m["pods"]["metric"]["name"] for m in of["HorizontalPodAutoscaler"]["spec"]["metrics"]}
ok(sorted(wanted ^ {r["name"]["as"] for r in rules}), "adapter.yaml makes its metrics")
with open(os.path.join(SRC, "src", "ipc", "metric.def")) as f:
    metrics = set(re.findall(r'"((?:vllm|quire):\w+)"', f.read()))
ok([r for r in rules if re.match(r"[\w:]+", r["seriesQuery"]).group() not in metrics or
    re.match(r"[\w:]+", r["seriesQuery"]).group() not in r["metricsQuery"]], "of metrics that quire has")


def bytes_of(text):
    number, unit = re.match(r"(\d+)([KMGT]?)", str(text)).groups()
    return int(number) << {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}[unit]


options = dict(a[2:].split("=", 1) for a in box["args"] if "=" in a)
shm = bytes_of(volumes["shm"]["emptyDir"]["sizeLimit"])
ok([] if bytes_of(options["kv-host-bytes"]) < shm < bytes_of(box["resources"]["limits"]["memory"]) else [shm],
   "/dev/shm holds the pages, and the memory limit /dev/shm")
pause = int(box["lifecycle"]["preStop"]["exec"]["command"][1])
ok([] if spec["terminationGracePeriodSeconds"] > pause + int(options["drain-timeout-s"]) + 10
   else [spec["terminationGracePeriodSeconds"]], "a pod that ends has time to drain")

# --- the examples on top of the base ---------------------------------------------------------------


def patched(doc, steps):
    """A copy of doc after JSON patches (RFC 6902), as kustomize makes them; a path that is not there raises."""
    doc = json.loads(json.dumps(doc))
    for step in steps:
        at, parts = doc, [p.replace("~1", "/").replace("~0", "~") for p in step["path"].split("/")[1:]]
        for p in parts[:-1]:
            at = at[int(p) if isinstance(at, list) else p]
        if step["op"] == "add" and isinstance(at, list) and parts[-1] == "-":
            at.append(step["value"])
        elif step["op"] == "replace" and parts[-1] in at:
            at[parts[-1]] = step["value"]
        else:
            raise KeyError(step)
    return doc


def overlay(example):
    """The documents of an example, {(kind, name): document}; patches that cannot be made are told."""
    where = os.path.join(folder, example)
    kustomization = read(os.path.join(where, "kustomization.yaml"))[0]
    wrong = list(check(kustomization, KUSTOMIZATION, "kustomization"))
    docs = {(d["kind"], d["metadata"]["name"]): d for d in of.values()}
    if kustomization["resources"][0] != "..":
        wrong.append("it is not on top of the base")
    for file in kustomization["resources"][1:]:
        docs.update({(d["kind"], d["metadata"]["name"]): d for d in read(os.path.join(where, file))})
    for patch in kustomization["patches"]:
        key, steps = (patch["target"]["kind"], patch["target"]["name"]), yaml.safe_load(patch["patch"])
        if key not in docs:
            wrong.append("there is no %s %s to be patched" % key)
        elif isinstance(steps, dict) and steps.get("$patch") == "delete":
            del docs[key]
        else:
            try:
                docs[key] = patched(docs[key], steps)
            except (KeyError, IndexError, TypeError) as e:
                wrong.append("a patch of %s %s: %r" % (*key, e))
    if kustomization["resources"][1:] and kustomization.get("images") != top["images"]:
        wrong.append("its own containers have another image than the base's")
    for (kind, called), d in docs.items():
        schema = KINDS.get((d["apiVersion"], kind), {"": None})
        if called == "quire-node1" and kind == "Deployment":
            schema = {"spec!": dict(schema["spec!"], **{"template!": {
                "metadata!": {"labels!": LABELS}, "spec!": NODE}})}
        wrong += check(d, dict({"apiVersion!": str, "kind!": str, "metadata!": META}, **schema), called)
    return docs, wrong


def given(deployment):
    box = deployment["spec"]["template"]["spec"]["containers"][0]
    return box, dict(a[2:].split("=", 1) for a in box["args"] if "=" in a)


def n_gpus(options):
    return int(options.get("tensor-parallel-size", 1)) * int(options.get("pipeline-parallel-size", 1))


examples = sorted(e for e in os.listdir(folder) if os.path.isdir(os.path.join(folder, e)))
for example in examples:
    docs, wrong = overlay(example)
    ok(wrong, "%s: it fits the base and the schemas" % example)
    box, options = given(docs["Deployment", "quire"])
    ok(strange(box["args"]), "%s: quire has the options" % example)
    nodes = int(options.get("nnodes", 1))
    ok([] if box["resources"]["limits"]["nvidia.com/gpu"] * nodes == n_gpus(options) > 1 else [box["resources"]],
       "%s: as many GPUs as the options want" % example)
    ok([] if shm < bytes_of(box["resources"]["requests"]["memory"]) <= bytes_of(box["resources"]["limits"]["memory"])
       else [box["resources"]], "%s: and room for /dev/shm" % example)
docs, _ = overlay("two-hosts")
near, first = given(docs["Deployment", "quire"])
far, second = given(docs["Deployment", "quire-node1"])
ok([k for k in ("nnodes", "pipeline-parallel-size", "master-addr", "master-port") if first.get(k) != second.get(k)] +
   ([] if second["model"] == near["args"][0] else [second["model"]]), "two-hosts: both nodes are told the same")
ok(strange(far["args"]) + ([] if far["command"] == ["quire-engine"] else [far["command"]]),
   "two-hosts: node 1 is an engine")
way = docs["Service", first["master-addr"]]["spec"]
open_to = docs["NetworkPolicy", "quire-nodes"]["spec"]
ok([] if way["selector"].items() <= labels.items() and way["ports"][0]["port"] == 29501 and
   open_to["podSelector"]["matchLabels"].items() <= labels.items() and
   open_to["ingress"][1]["ports"] == [{"port": 29501}] and open_to["ingress"][1]["from"][0]["podSelector"] ==
   docs["Deployment", "quire-node1"]["spec"]["selector"] else [way, open_to],
   "two-hosts: node 1, and it alone, reaches node 0 by its name")
ok([k for k in docs if k[0] == "HorizontalPodAutoscaler"], "two-hosts: nothing makes more pods")

# --- Kubernetes' own schemas ------------------------------------------------------------------------

try:
    import kubernetes_validate
except ImportError:
    n += 1
    print("ok %d - Kubernetes' own schemas # SKIP there is no kubernetes-validate: pip install kubernetes-validate" % n)
else:
    version, wrong, seen = kubernetes_validate.latest_version(), [], 0
    for example in ["."] + examples:
        for key, d in (overlay(example)[0] if example != "." else of).items():
            try:
                kubernetes_validate.validate(d, version, strict=True)
                seen += 1
            except kubernetes_validate.SchemaNotFoundError:
                if d["kind"] != "ServiceMonitor":  # of the Prometheus operator
                    wrong.append("%s: no schema of %s" % (example, key))
            except kubernetes_validate.ValidationError as e:
                wrong.append("%s: %s: %s" % (example, key, e))
    ok(wrong, "Kubernetes %s takes %d resources of base and examples, with no unknown field" % (version, seen))
print("1..%d" % n)
sys.exit(1 if failed else 0)
