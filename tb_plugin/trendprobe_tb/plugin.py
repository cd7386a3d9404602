"""The TensorBoard plugin: registers the page and the routes of http_api.md, and turns errors into responses."""

from __future__ import annotations

import gzip
import json
import logging
import os
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
from tensorboard.backend import http_util
from tensorboard.plugins import base_plugin
from werkzeug import wrappers

from trendprobe_tb.api import Answer, Api
from trendprobe_tb.log_directory import LogDirectory, parse_logdir_spec
from trendprobe_tb.request_error import RequestError

__all__ = ["TrendProbePlugin"]

_STATIC: Final = os.path.join(os.path.dirname(__file__), "static")
_GZIP_SAMPLE: Final = 1 << 16
_logger = logging.getLogger("trendprobe")

WsgiApplication = Callable[[dict[str, Any], Any], Iterable[bytes]]


class TrendProbePlugin(base_plugin.TBPlugin):  # type: ignore[misc]  # TensorBoard has no type annotations.
    """Tab TREND ANALYZER.

    Args:
        context: TensorBoard's base_plugin.TBContext; its logdir, or its logdir_spec flag, tells where to look.

    """

    plugin_name = "trendprobe"

    def __init__(self, context: Any) -> None:
        logdir = getattr(context, "logdir", None) or ""
        spec = getattr(getattr(context, "flags", None), "logdir_spec", None) or ""
        self._directory = LogDirectory({"": logdir} if logdir else parse_logdir_spec(spec))
        self._directory.listing(wait_seconds=0.0)
        self._api = Api(self._directory)

    def is_active(self) -> bool:
        """Return True once a trend database was found; cheap, since TensorBoard asks often."""
        return self._directory.has_databases()

    def frontend_metadata(self) -> Any:
        """Name the page: an ES module that TensorBoard loads into a frame of its own."""
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name="TREND ANALYZER")

    def get_plugin_apps(self) -> dict[str, WsgiApplication]:
        """Return all routes. TensorBoard asks once, at its start, so none depends on the files there are."""
        routes: dict[str, WsgiApplication] = {"/index.js": self._serve_page}
        for name in ("databases", "dataset", "targets", "tags", "slice", "line", "cell", "nonfinite"):
            routes[f"/api/v1/{name}"] = self._route(getattr(self._api, name))
        return routes

    def _route(self, handler: Callable[[Iterable[tuple[str, str]]], Answer]) -> WsgiApplication:
        @wrappers.Request.application
        def serve(request: wrappers.Request) -> wrappers.Response:
            try:
                if request.method not in ("GET", "HEAD"):
                    raise RequestError(405, "bad_method", "Only GET is allowed.")
                return _respond(request, handler(request.args.items(multi=True)))
            except RequestError as error:
                return _respond_error(request, error)
            except Exception:  # A file can be broken in ways that nobody thought of; TensorBoard must go on.
                _logger.exception("%s failed", request.path)
                return _respond_error(
                    request,
                    RequestError(
                        422,
                        "unreadable_database",
                        "The database holds something unexpected and can't be shown. TensorBoard's log says more.",
                    ),
                )

        return serve

    @staticmethod
    def _serve_page(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        request = wrappers.Request(environ)
        try:
            with open(os.path.join(_STATIC, "index.js"), "rb") as page:
                content = page.read()
        except OSError:
            content = _BROKEN_INSTALL.encode()
        return _response(request, content, "text/javascript")(environ, start_response)


_BROKEN_INSTALL: Final = """export function render() {
  document.body.textContent = "TrendProbe was installed without its page (trendprobe_tb/static/index.js is missing). "
    + "Install it again; building from source needs Node.js and -DTRENDPROBE_BUILD_PAGE=ON.";
}
"""


def _respond(request: wrappers.Request, answer: Answer) -> wrappers.Response:
    if not isinstance(answer.body, np.ndarray):
        # json.dumps here: TensorBoard's own conversion would copy the whole tree first.
        text = json.dumps(answer.body, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
        return _response(request, text, "application/json", expires=answer.cache_seconds, headers=list(answer.headers))
    content = np.ascontiguousarray(answer.body).tobytes()
    encoding = None
    if "gzip" in request.headers.get("Accept-Encoding", "") and _compresses(content):
        content = gzip.compress(content, compresslevel=1, mtime=0)
        encoding = "gzip"
    return _response(
        request,
        content,
        "application/octet-stream",
        expires=answer.cache_seconds,
        content_encoding=encoding,
        headers=list(answer.headers),
    )


def _respond_error(request: wrappers.Request, error: RequestError) -> wrappers.Response:
    text = json.dumps({"error": {"code": error.code, "message": error.message}})
    headers = [("Allow", "GET")] if error.status == 405 else []
    return _response(request, text, "application/json", code=error.status, headers=headers)


def _response(request: wrappers.Request, content: str | bytes, content_type: str, **options: Any) -> wrappers.Response:
    return http_util.Respond(request, content, content_type, **options)  # type: ignore[no-any-return]


def _compresses(content: bytes) -> bool:
    """Tell whether compression would halve it: measured values rarely shrink, maps full of missing ones do."""
    middle = max(0, (len(content) - _GZIP_SAMPLE) // 2)
    sample = content[middle : middle + _GZIP_SAMPLE]
    return len(sample) > 1024 and len(gzip.compress(sample, compresslevel=1)) < len(sample) // 2
