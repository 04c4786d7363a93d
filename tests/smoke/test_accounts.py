from tests.support.server import Server


def test_create_rename_and_delete(restartable: Server) -> None:
    with restartable.client(restartable.operator_key) as operator:
        account = operator.post("/v1/accounts", json={"name": "first"}).raise_for_status().json()
        path = f"/v1/accounts/{account['id']}"
        assert operator.patch(path, json={"name": "second"}).json()["name"] == "second"
        assert operator.get(path).json()["name"] == "second"
        assert operator.delete(path).is_success
        assert operator.get(path).status_code == 404
