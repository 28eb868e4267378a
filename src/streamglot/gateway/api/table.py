"""Everything that the server answers beside the endpoints of dialects, as one table."""

from __future__ import annotations

from ..admission import Admission
from ..auth.access import Access
from ..forward import forward_routes
from ..lifecycle import Lifecycle
from ..observe.recording import Recording
from ..services import GatewayServices, RunningRequests
from .batch import batch_routes
from .batches import batches_routes, message_batch_routes
from .files import file_routes
from .inspect import inspect_routes
from .models import model_routes
from .overview import approval_routes, overview_routes
from .pages import description_routes, page_routes, state_routes
from .router import APIRoute
from .sessions import session_routes, store_routes
from .streams import response_routes, resume_routes


def table(
    services: GatewayServices,
    access: Access,
    admission: Admission,
    recording: Recording,
    requests: RunningRequests,
    lifecycle: Lifecycle,
) -> list[APIRoute]:
    """The routes, in the order in which they are described. Each module gets the parts that it needs."""
    routes = [
        *model_routes(services, admission),
        *forward_routes(services, admission, recording),
        *batch_routes(services, admission, recording, requests),
        *response_routes(services, access, recording),
        *file_routes(services, access, lifecycle),
        *batches_routes(services, access, lifecycle),
        *message_batch_routes(services, access, lifecycle),
        *resume_routes(services, access, recording),
        *store_routes(access, recording),
        *session_routes(services, access, recording),
        *inspect_routes(services, access, recording),
        *approval_routes(services, access, recording, requests),
        *overview_routes(services, access, recording, requests),
        *page_routes(),
        *state_routes(services, access, recording, requests),
        *description_routes(lambda: routes),
    ]
    return routes
