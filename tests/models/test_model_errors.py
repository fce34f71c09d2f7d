"""What error texts mean: recorded texts of the large providers, as their clients and pydantic-ai give them."""

from __future__ import annotations

import pytest

from pidurable_nb.messages import AssistantMessage, Usage
from pidurable_nb.models import error_kind, is_overflow, is_retryable, redact, retry_after
from pidurable_nb.models.errors import ErrorKind, marked


def failed(text: str | None) -> AssistantMessage:
    return AssistantMessage(stop_reason="error", error=text)


RETRYABLE = [
    # OpenAI
    "Error code: 429 - {'error': {'message': 'Rate limit reached for gpt-4o in organization org-x on tokens per min "
    "(TPM): Limit 30000, Used 29000, Requested 2000. Please try again in 2s.', 'code': 'rate_limit_exceeded'}}",
    "HTTP 500 Internal Server Error: The server had an error while processing your request. Sorry about that!",
    "HTTP 503 Service Unavailable: The engine is currently overloaded, please try again later",
    "Error code: 502",
    "Connection error: Connection error. [ConnectError: All connection attempts failed]",
    "Request timed out.",
    # Anthropic
    "HTTP 529: Overloaded (overloaded_error)",
    '{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}',
    "HTTP 429 Too Many Requests: This request would exceed your organization's rate limit of 40,000 input tokens per "
    "minute",
    '{"type":"error","error":{"type":"api_error","message":"Internal server error"}}',
    # Google
    "429 RESOURCE_EXHAUSTED. {'error': {'code': 429, 'message': 'You exceeded your current quota, please check your "
    "plan and billing details. Please retry in 12.5s.', 'status': 'RESOURCE_EXHAUSTED'}}",
    "503 UNAVAILABLE. {'error': {'code': 503, 'message': 'The model is overloaded. Please try again later.'}}",
    # Bedrock, Azure, Mistral, proxies
    "An error occurred (ThrottlingException) when calling the ConverseStream operation: Too many requests",
    "ServiceUnavailableException: Bedrock is unable to process your request.",
    "HTTP 408 Request Timeout",
    "504 Gateway Time-out",
    "upstream connect error or disconnect/reset before headers. reset reason: connection termination",
    # the network
    "RemoteProtocolError: peer closed connection without sending complete message body (incomplete chunked read)",
    "ReadError",
    "ReadTimeout",
    "Server disconnected without sending a response.",
    "ConnectionResetError: [Errno 104] Connection reset by peer",
    "ConnectError: [Errno -3] Temporary failure in name resolution",
    "The stream ended without a finish: the connection was cut, or the provider gave up.",
    "503 Service Unavailable",
]

FINAL: list[tuple[ErrorKind, str]] = [
    # OpenAI
    (
        "authentication",
        "Error code: 401 - {'error': {'message': 'Incorrect API key provided: sk-***', 'code': 'invalid_api_key'}}",
    ),
    (
        "quota",
        "HTTP 429 Too Many Requests: You exceeded your current quota, please check your plan and billing details. "
        "(insufficient_quota)",
    ),
    ("malformed", "HTTP 404 Not Found: The model `gpt-99` does not exist or you do not have access to it."),
    ("refused", "The provider ended the answer: content_filter (its content filter refused the request or the answer)"),
    (
        "refused",
        "HTTP 400 Bad Request: Invalid prompt: your prompt was flagged as potentially violating our usage policy.",
    ),
    # Azure
    (
        "refused",
        "HTTP 400 Bad Request: The response was filtered due to the prompt triggering Azure OpenAI's content "
        "management policy. Please modify your prompt and retry. (content_filter)",
    ),
    # Anthropic
    ("authentication", "HTTP 401 Unauthorized: invalid x-api-key (authentication_error)"),
    ("authentication", "HTTP 403 Forbidden: permission_error"),
    ("quota", "HTTP 400 Bad Request: Your credit balance is too low to access the Anthropic API."),
    (
        "malformed",
        "HTTP 400 Bad Request: messages.0.content: text content blocks must be non-empty (invalid_request_error)",
    ),
    ("refused", "The provider ended the answer: refusal (its content filter refused the request or the answer)"),
    # Google
    ("authentication", "400 INVALID_ARGUMENT: API key not valid. Missing or invalid API key."),
    ("authentication", "403 PERMISSION_DENIED. {'error': {'code': 403, 'message': 'denied'}}"),
    ("malformed", "400 INVALID_ARGUMENT: * GenerateContentRequest.tools[0].name: Invalid function name."),
    ("refused", "The provider ended the answer: PROHIBITED_CONTENT"),
    # Bedrock
    ("authentication", "An error occurred (AccessDeniedException) when calling the ConverseStream operation: no"),
    ("malformed", "An error occurred (ValidationException) when calling the ConverseStream operation: bad tool"),
    # others
    ("quota", "HTTP 402 Payment Required"),
    ("malformed", "HTTP 422 Unprocessable Entity: tools.0.parameters: timeout is not a valid schema"),
    ("authentication", "openai:gpt-5 needs a key: set the environment variable OPENAI_API_KEY."),
    ("other", "ZeroDivisionError: division by zero"),
    # a difference quotes requests, which may say anything
    ("other", "RecordingMismatch: not recorded\n+   HTTP 503: overloaded, prompt is too long"),
]

OVERFLOW = [
    "Error code: 400 - {'error': {'message': \"This model's maximum context length is 128000 tokens. However, your "
    "messages resulted in 130000 tokens.\", 'code': 'context_length_exceeded'}}",
    "HTTP 400 Bad Request: Your input exceeds the context window of this model. Please adjust your input.",
    "HTTP 400 Bad Request: prompt is too long: 213462 tokens > 200000 maximum (invalid_request_error)",
    "HTTP 400 Bad Request: input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
    "400 INVALID_ARGUMENT: The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
    "ValidationException: Input is too long for requested model.",
    "HTTP 400 Bad Request: request (5012 tokens) exceeds the available context size (4096 tokens), try increasing it",
    "Please reduce the length of the messages or completion.",
    "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    "HTTP 413 Content Too Large: Request too large for model `llama-3.3-70b`",
]


@pytest.mark.parametrize("text", RETRYABLE)
def test_what_may_succeed_later_is_retryable(text: str) -> None:
    assert is_retryable(failed(text))
    assert not is_overflow(failed(text))


@pytest.mark.parametrize(("kind", "text"), FINAL)
def test_what_no_waiting_mends_is_not_retryable(kind: ErrorKind, text: str) -> None:
    assert error_kind(failed(text)) == kind
    assert not is_retryable(failed(text))
    assert not is_overflow(failed(text))


def test_a_kind_that_a_client_knows_wins_over_the_words() -> None:
    assert marked("HTTP 429 Too Many Requests", "retryable") == "HTTP 429 Too Many Requests"
    spent = marked("HTTP 429 Too Many Requests: daily limit (retry after 9 s)", "quota")
    assert spent.endswith(" [quota]")
    assert error_kind(failed(spent)) == "quota"
    assert retry_after(failed(spent)) == 9.0
    assert is_overflow(failed(marked("HTTP 400: trop long", "overflow")))


@pytest.mark.parametrize("text", OVERFLOW)
def test_too_long_a_request_is_an_overflow_and_not_retryable(text: str) -> None:
    assert is_overflow(failed(text))
    assert not is_retryable(failed(text))


def test_only_errors_are_classified() -> None:
    answer = AssistantMessage("503 Service Unavailable: prompt is too long")
    assert not is_retryable(answer)
    assert not is_overflow(answer)
    assert error_kind(answer) is None
    assert not is_retryable(failed(None))


def test_an_answer_that_read_more_than_the_window_is_an_overflow() -> None:
    silent = AssistantMessage("ok", usage=Usage(input_tokens=100, cache_read_tokens=4000))
    assert is_overflow(silent, 4096)
    assert not is_overflow(silent, 8192)
    assert not is_overflow(silent)
    nothing = AssistantMessage(stop_reason="length", usage=Usage(input_tokens=4090))
    assert is_overflow(nothing, 4096)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Please try again in 2s.", 2.0),
        ("Please try again in 6m0s.", 360.0),
        ("Please try again in 1.5 seconds", 1.5),
        ("Please try again in 320ms.", 0.32),
        ("Please retry in 12.5s.", 12.5),
        ("'retryDelay': '38s'", 38.0),
        ("HTTP 429 Too Many Requests (retry after 7 s)", 7.0),
        ("retry-after: 30", 30.0),
        ("retry-after-ms: 1500", 1.5),
        ("Please try again in 1h2m3s", 3723.0),
        ("Please wait for 2 minutes.", 120.0),
        ("please try again later", None),
        ("retry after a while", None),
    ],
)
def test_the_wait_that_the_provider_asks_for_is_read(text: str, seconds: float | None) -> None:
    assert retry_after(failed(text)) == seconds


def test_keys_are_taken_out_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_VENDOR_API_KEY", "plain-looking-value")
    monkeypatch.setenv("SHORT_TOKEN", "the")
    text = (
        "the key sk-proj-abcdefghijklmnop, plain-looking-value, Bearer abcdefgh123, ?key=AIzaSyABCDEFGHIJ&x=1, "
        "custom-header-value"
    )
    assert redact(text, ["custom-header-value"]) == (
        "the key [redacted], [redacted], Bearer [redacted], ?key=[redacted]&x=1, [redacted]"
    )
