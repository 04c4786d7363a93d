from stoker.platform.web.principal import Principal, Scope
from stoker.registry.deployments.directory import Directory, DirectoryEntry
from stoker.store import db


def entry(identifier: str, model: str = "m") -> DirectoryEntry:
    return DirectoryEntry(
        deployment_id=identifier,
        version_id=f"ver_{identifier}",
        account_id="acct_1",
        model=model,
        pipeline="fill-mask",
        readiness="cold",
        source="upl_1",
        created_at=db.now(),
    )


async def found(directory: Directory, model: str = "m") -> str:
    caller = Principal(
        key_id="key_1",
        public_id="1",
        scope=Scope.ACCOUNT,
        account_id="acct_1",
        deployment_ids=frozenset(),
        limits={},
    )
    return (await directory.resolve(caller, model)).deployment_id


class TestL4:
    async def test_successor_stays_when_its_predecessor_goes_late(self):
        directory = Directory()
        directory.put(entry("dep_1"))
        directory.put(entry("dep_2"))
        directory.drop("dep_1")
        assert await found(directory) == "dep_2"
        directory.drop("dep_2")
        assert len(directory) == 0

    async def test_one_that_changes_stays_the_only_one(self):
        directory = Directory()
        for _ in range(2):
            directory.put(entry("dep_1"))
        assert await found(directory) == "dep_1"
        assert len(directory) == 1
