"""Breaks one line that guards each security case, and checks that the tests of the case fail.

`python -m tools.mutations` runs all mutations in a copy of this folder. With case numbers as
arguments, it runs only those. docs/security_cases.md shows the last results.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
_COPIED = ("stoker", "tests", "tools", "docs", "pyproject.toml", "README.md", "CONTRIBUTING.md")
_TIMEOUT_S = 420


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """A broken guard. `old` occurs once in the file and is replaced by `new`."""

    case: int
    breaks: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    """Tests in pytest's notation. All are marked with the case."""
    seen: str = "failed, as required"
    """Result of the last run."""


MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        case=1,
        breaks="pickles are not detected by content",
        file="stoker/inspection/recognise.py",
        old='    (rb"\\x80[\\x02-\\x05]", _PICKLE),\n',
        new="",
        tests=("tests/inspection/test_content.py::TestRefusedByContent::test_pickles",),
    ),
    Mutation(
        case=2,
        breaks="the file name decides for unknown content",
        file="stoker/inspection/content.py",
        old="        if not is_text:\n            raise _not_text(FailureCode.BAD_TEXT, path)\n",
        new="        if not is_text:\n            return FileKind.TEXT\n",
        tests=("tests/inspection/test_content.py::TestRefusedByContent::test_unknown_binaries",),
    ),
    Mutation(
        case=3,
        breaks="keys that name code are searched at the top level only",
        file="stoker/inspection/documents.py",
        old="pending.extend((child, depth + 1) for child in children",
        new="(lambda _: None)((child, depth + 1) for child in children",
        tests=("tests/inspection/test_documents.py::TestRemoteCode",),
    ),
    Mutation(
        case=4,
        breaks="HDF5 and NumPy files are not rejected",
        file="stoker/inspection/content.py",
        old="    if isinstance(kind, Foreign):\n",
        new="    if isinstance(kind, Foreign) and kind.code.name != 'UNSUPPORTED_FORMAT':\n",
        tests=("tests/inspection/test_content.py::TestRefusedByContent::test_foreign_formats",),
    ),
    Mutation(
        case=5,
        breaks="chat templates are rendered outside the sandbox",
        file="stoker/models/chat/prompts/prompts.py",
        old="            return self._template.rendered(messages, **further)\n",
        new=(
            "            import jinja2 as plain\n"
            "\n"
            "            bare = plain.Environment().from_string(self._template.source)\n"
            "            return bare.render(messages=messages, **further)\n"
        ),
        tests=("tests/llm/test_gguf.py::TestTokenizer::test_its_template_cannot_run_code",),
    ),
    Mutation(
        case=6,
        breaks="variables that a template does not use are passed to it",
        file="stoker/models/chat/prompts/prompts.py",
        old="            if not self._template.reads(name):\n",
        new="            if not (name and field):\n",
        tests=("tests/chat/test_prompts.py::TestPrepare::test_variables_that_it_does_not_know",),
    ),
    Mutation(
        case=6,
        breaks="chat templates have no time limit",
        file="stoker/models/chat/prompts/rendering.py",
        old=(
            "        signal.setitimer(signal.ITIMER_PROF, CPU_S)\n"
            "        signal.setitimer(signal.ITIMER_REAL, WAITS_S)\n"
        ),
        new="",
        tests=("tests/chat/test_rendering.py::TestLimits::test_row6_time",),
    ),
    Mutation(
        case=7,
        breaks="zip files are not detected by content",
        file="stoker/inspection/recognise.py",
        old='    (rb"PK(?:\\x03\\x04|\\x05\\x06|\\x07\\x08)", _ZIP),\n',
        new="",
        tests=("tests/inspection/test_content.py::TestRefusedByContent::test_foreign_formats",),
    ),
    Mutation(
        case=8,
        breaks="`..` is allowed within a part of a path",
        file="stoker/inspection/names.py",
        old='    if not _PART.fullmatch(part) or ".." in part:\n',
        new="    if not _PART.fullmatch(part):\n",
        tests=("tests/inspection/test_names.py::TestValidatePath::test_refuses",),
    ),
    Mutation(
        case=9,
        breaks="tensors may overlap",
        file="stoker/inspection/safetensors.py",
        old="        if tensor.begin != position:\n",
        new="        if tensor.begin > position:\n",
        tests=("tests/inspection/test_safetensors.py::TestLayout",),
    ),
    Mutation(
        case=10,
        breaks="one public address among private ones is enough",
        file="stoker/media/hosts.py",
        old="all(is_global(address) for address in addresses)",
        new="any(is_global(address) for address in addresses)",
        tests=("tests/media/test_fetch.py::TestAddresses",),
    ),
    Mutation(
        case=11,
        breaks="the pixels of an image are not limited before it is decoded",
        file="stoker/media/image.py",
        old="    if image.width * image.height > limits.image_pixels:\n",
        new="    if image.width > limits.image_pixels:\n",
        tests=("tests/media/test_image.py::TestRefused",),
    ),
    Mutation(
        case=12,
        breaks="an error message contains a folder of the server",
        file="stoker/registry/deployments/folders.py",
        old="\"'source' must be a folder",
        new="f\"{settings.data_dir} 'source' must be a folder",
        tests=("tests/web/test_errors.py::TestMessages::test_carry_nothing_of_the_server",),
    ),
    Mutation(
        case=13,
        breaks="a path from a URL with the `Host` header decides whether a key is required",
        file="stoker/tenancy/keys/auth.py",
        old="    known = caller_of(request)\n    if known is None:\n",
        new=(
            "    from urllib.parse import urlsplit\n\n"
            "    host = request.headers.get('host', '')\n"
            "    if urlsplit(f'http://{host}{request.scope[\"path\"]}').path == '/health':\n"
            "        return Principal('', '', Scope.OPERATOR, None, frozenset())\n"
            "    known = caller_of(request)\n    if known is None:\n"
        ),
        tests=("tests/keys/test_auth.py::TestRouteTable::test_host_header_opens_nothing",),
    ),
    Mutation(
        case=14,
        breaks="a new route requires no key",
        file="stoker/server/app.py",
        old="    openapi.install(app)\n",
        new='    app.add_api_route("/pause", lambda: {})\n    openapi.install(app)\n',
        tests=("tests/keys/test_auth.py::TestRouteTable::test_every_bad_key_is_refused",),
    ),
    Mutation(
        case=15,
        breaks="digests are compared by `==`",
        file="stoker/tenancy/keys/keyring.py",
        old="hmac.compare_digest(known, presented)",
        new="known == presented",
        tests=("tests/keys/test_comparison.py",),
    ),
    Mutation(
        case=16,
        breaks="keys are logged when they are checked",
        file="stoker/tenancy/keys/keyring.py",
        old="        return await self.check_digest(*parsed(token))\n",
        new=(
            "        __import__('logging').getLogger('stoker').info('checking %s', token)\n"
            "        return await self.check_digest(*parsed(token))\n"
        ),
        tests=("tests/keys/test_secrets.py::test_secrets_are_in_no_file_and_no_log",),
    ),
    Mutation(
        case=17,
        breaks="`n` has no upper bound",
        file="stoker/inference/openai/sampling.py",
        old='        le=wire.MAX_CHOICES,\n        description="Number of answers',
        new='        description="Number of answers',
        tests=("tests/server/test_openapi.py::TestBounds",),
    ),
    Mutation(
        case=18,
        breaks="the length of a grammar is unlimited",
        file="stoker/models/chat/forms/grammar.py",
        old="    if len(text) > limits.MAX_CHARS:\n",
        new="    if len(text) > 1 << 60:\n",
        tests=("tests/chat/test_grammar.py::TestRefusals::test_names_the_field_within_seconds",),
    ),
    Mutation(
        case=19,
        breaks="a body without `Content-Length` is not limited while it is read",
        file="stoker/platform/web/http.py",
        old="        received += len(body)\n",
        new="",
        tests=("tests/web/test_errors.py::TestPayloadTooLarge",),
    ),
    Mutation(
        case=20,
        breaks="all deployments share one deployment's replicas",
        file="stoker/runtime/pool/registry.py",
        old="        pool = self._pools.get(deployment_id)\n        if pool is None:\n",
        new="        pool = next(iter(self._pools.values()), None)\n        if pool is None:\n",
        tests=("tests/deployments/test_tenants.py",),
    ),
    Mutation(
        case=21,
        breaks="`prompt_embeds` is ignored",
        file="stoker/models/tasks/known_fields.txt",
        old="text | vLLM | prompt_embeds | refused |",
        new="text | vLLM | prompt_embeddings | refused |",
        tests=("tests/openai/test_fields.py::test_prompt_embeddings_are_refused",),
    ),
    Mutation(
        case=22,
        breaks="an `assert` checks a scope",
        file="stoker/tenancy/keys/auth.py",
        old=(
            "    if caller.scope is not Scope.OPERATOR:\n"
            "        raise lacks_scope(caller, Scope.OPERATOR)\n"
        ),
        new="    assert caller.scope is Scope.OPERATOR\n",
        tests=("tests/test_security_cases.py::test_no_assert_is_a_check",),
    ),
    Mutation(
        case=23,
        breaks="requests to tool servers bypass the rules of the fetcher",
        file="stoker/workloads/agents/outbound.py",
        old="            ssl_context=self._ssl_context, network_backend=self._backend\n",
        new="            ssl_context=self._ssl_context\n",
        tests=("tests/agents/test_tool_servers.py::TestHosts",),
    ),
    Mutation(
        case=24,
        breaks="a deployment is found from any account",
        file="stoker/registry/deployments/repository.py",
        old="        Deployment.id == deployment_id, Deployment.account_id == account_id\n",
        new="        Deployment.id == deployment_id\n",
        tests=("tests/keys/test_auth.py::TestOtherAccounts",),
    ),
    Mutation(
        case=25,
        breaks="files are served without a content security policy",
        file="stoker/registry/files/endpoints.py",
        old='        "content-security-policy": "default-src \'none\'; sandbox",\n',
        new="",
        tests=("tests/files/test_files.py::TestContent::test_needs_key_or_link",),
    ),
    Mutation(
        case=26,
        breaks="any signature of a link is accepted",
        file="stoker/store/secret.py",
        old="        return hmac.compare_digest(self.sign(text).encode(), signature.encode())\n",
        new="        return bool(signature)\n",
        tests=("tests/files/test_files.py::TestLink",),
    ),
    Mutation(
        case=27,
        breaks="references of a schema are counted without expansion",
        file="stoker/workloads/evaluation/checks/schema_bounds.py",
        old="                steps += self._target(member, depth)\n",
        new="                steps += 1\n",
        tests=("tests/checks/test_schema_bounds.py::test_references_that_double_are_refused",),
    ),
    Mutation(
        case=27,
        breaks="the evaluation of a schema has no time limit",
        file="stoker/workloads/evaluation/checks/judges.py",
        old=" cpu_s=CPU_S,",
        new="",
        tests=(
            "tests/checks/test_judges.py::test_an_endless_schema_fails_its_check_and_holds_nobody",
        ),
    ),
    Mutation(
        case=28,
        breaks="stored answers belong to the account instead of the key",
        file="stoker/platform/web/idempotency.py",
        old="    parts = (caller.key_id, account, method, path, key)\n",
        new="    parts = (str(caller.account_id), account, method, path, key)\n",
        tests=("tests/web/test_idempotency.py::test_records_belong_to_the_key_that_asked",),
    ),
    Mutation(
        case=29,
        breaks="errors of SQLite contain the parameters",
        file="stoker/store/sqlite.py",
        old=", hide_parameters=True",
        new="",
        tests=("tests/store/test_redaction.py::test_no_value_is_in_an_error",),
    ),
    Mutation(
        case=30,
        breaks="an account can use all slots",
        file="stoker/base/fairness.py",
        old="min(self._greed * free, max(1, self._places - 1))",
        new="self._greed * free",
        tests=("tests/jobs/test_turns.py::TestAllot::test_of_few_places_one_is_left",),
    ),
    Mutation(
        case=31,
        breaks="answers of any size are parsed in the gateway",
        file="stoker/workloads/evaluation/replay/comparer.py",
        old="            if pair.size <= SMALL_BYTES:\n",
        new="            if pair.size <= MOST_BYTES:\n",
        tests=("tests/replay/test_comparer.py::test_a_large_answer_is_read_elsewhere",),
    ),
    Mutation(
        case=32,
        breaks="each module is searched in all patterns",
        file="stoker/models/adapters/lora.py",
        old="        matches = [self.ends[end] for end in ends if end in self.ends]\n",
        new="        matches = [self.ends[k] for end in ends for k in self.ends if k == end]\n",
        tests=(
            "tests/adapters/test_lora.py::test_many_modules_and_patterns_take_no_time_of_the_square",
        ),
    ),
    Mutation(
        case=33,
        breaks="free disk space is not checked before an adapter is merged",
        file="stoker/registry/deployments/merging.py",
        old="        self._check_disk(self._coming + size)\n",
        new="",
        tests=("tests/adapters/test_merging.py::TestBounds::test_disk_and_quota_come_first",),
    ),
    Mutation(
        case=34,
        breaks="children of a replica do not count",
        file="stoker/runtime/local/processes/memory_watchdog.py",
        old="max(0, process_bytes - resident.inherited) + resident.below",
        new="max(0, process_bytes - resident.inherited)",
        tests=("tests/runtime/local/test_memory_watchdog.py::test_what_is_below_a_replica_counts",),
    ),
)


def run(mutation: Mutation, copy: Path) -> str:
    """Returns the tests' result for a mutation, with the last line of pytest's output."""
    path = copy / mutation.file
    whole = path.read_text()
    if whole.count(mutation.old) != 1:
        return f"does not fit: what is to be broken stands {whole.count(mutation.old)} times there"
    path.write_text(whole.replace(mutation.old, mutation.new))
    try:
        done = subprocess.run(  # noqa: S603 — pytest, and what stands above
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *mutation.tests],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy)},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "took too long"
    finally:
        path.write_text(whole)
    last = (done.stdout.strip().splitlines() or ["pytest said nothing"])[-1]
    noticed = {0: "NOT NOTICED", 1: "noticed"}.get(
        done.returncode, f"pytest ended {done.returncode}"
    )
    return f"{noticed}: {last}"


def main(cases: Sequence[int]) -> int:
    with tempfile.TemporaryDirectory(prefix="stoker-mutations-") as folder:
        copy = Path(folder)
        for name in _COPIED:
            if (ROOT / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / name, copy / name, ignore=ignored)
            else:
                shutil.copy(ROOT / name, copy / name)
        results = {
            mutation: run(mutation, copy)
            for mutation in MUTATIONS
            if not cases or mutation.case in cases
        }
    for mutation, result in results.items():
        sys.stdout.write(f"{mutation.case:3} {mutation.breaks}: {result}\n")
    return int(any(not result.startswith("noticed") for result in results.values()))


if __name__ == "__main__":
    sys.exit(main([int(number) for number in sys.argv[1:]]))
