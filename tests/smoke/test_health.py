from tests.support.server import Server


def test_health_readiness_metrics_and_console(restartable: Server) -> None:
    with restartable.client() as anonymous:
        assert anonymous.get("/health").status_code == 200
        assert anonymous.get("/ready").status_code == 200
        page = anonymous.get("/console/")
        assert page.status_code == 200
        assert "<title>Stoker" in page.text
        assert anonymous.get("/v1/models").status_code == 401
        assert anonymous.get("/metrics").status_code == 401
    with restartable.client(restartable.operator_key) as operator:
        assert "stoker_deployments" in operator.get("/metrics").text
