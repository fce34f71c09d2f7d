"""The providers that pydantic-ai asks by name, with the package and the environment variables that each one needs.

It is known here so that what is missing can be told without importing anything (``catalog``, ``%durable models``).
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["VENDORS", "Vendor", "installed"]


@dataclass(frozen=True, slots=True)
class Vendor:
    """One provider: ``extra`` is the one of pydantic-ai-slim that brings what ``package`` names.

    ``variables`` is what has to be in the environment: one of each tuple.
    """

    name: str
    package: str
    extra: str
    variables: tuple[tuple[str, ...], ...]

    @property
    def install(self) -> str:
        """The command that installs what it needs."""
        return f"pip install 'pydantic-ai-slim[{self.extra}]'"

    def missing(self) -> str | None:
        """What is missing to use it now, ``None`` when nothing is."""
        if not installed(self.package):
            return self.install
        absent = [" or ".join(names) for names in self.variables if not any(os.environ.get(name) for name in names)]
        return f"set {' and '.join(absent)}" if absent else None


def installed(package: str) -> bool:
    """Whether a package can be imported; it is only looked for."""
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the parent of a dotted name
        return False


def _openai(name: str, *variables: tuple[str, ...], extra: str = "openai") -> Vendor:
    """A provider whose interface OpenAI's client speaks."""
    return Vendor(name, "openai", extra, variables)


_AZURE = (("AZURE_OPENAI_API_KEY",), ("AZURE_OPENAI_ENDPOINT",))
_OPENAI = ("OPENAI_API_KEY", "OPENAI_BASE_URL")
_GATEWAY = ("PYDANTIC_AI_GATEWAY_API_KEY", "PAIG_API_KEY")

_ALL = (
    _openai("openai", _OPENAI),
    Vendor("anthropic", "anthropic", "anthropic", (("ANTHROPIC_API_KEY",),)),
    Vendor("google", "google.genai", "google", (("GOOGLE_API_KEY", "GEMINI_API_KEY"),)),
    Vendor("groq", "groq", "groq", (("GROQ_API_KEY",),)),
    Vendor("mistral", "mistralai", "mistral", (("MISTRAL_API_KEY",),)),
    _openai("openrouter", ("OPENROUTER_API_KEY",)),
    _openai("deepseek", ("DEEPSEEK_API_KEY",)),
    _openai("ollama", ("OLLAMA_BASE_URL",)),
    Vendor("xai", "xai_sdk", "xai", (("XAI_API_KEY",),)),
    Vendor(
        "bedrock",
        "boto3",
        "bedrock",
        (("AWS_BEARER_TOKEN_BEDROCK", "AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_ROLE_ARN"),),
    ),
    Vendor("google-cloud", "google.genai", "google", (("GOOGLE_CLOUD_PROJECT", "GOOGLE_APPLICATION_CREDENTIALS"),)),
    _openai("azure", *_AZURE),
    Vendor("cohere", "cohere", "cohere", (("CO_API_KEY",),)),
    Vendor("huggingface", "huggingface_hub", "huggingface", (("HF_TOKEN",),)),
    _openai("cerebras", ("CEREBRAS_API_KEY",), extra="cerebras"),
    _openai("together", ("TOGETHER_API_KEY",)),
    _openai("fireworks", ("FIREWORKS_API_KEY",)),
    _openai("moonshotai", ("MOONSHOTAI_API_KEY",)),
    _openai("alibaba", ("ALIBABA_API_KEY", "DASHSCOPE_API_KEY")),
    _openai("zai", ("ZAI_API_KEY",), extra="zai"),
    _openai("meta", ("META_API_KEY",)),
    _openai("github-copilot", ("COPILOT_GITHUB_TOKEN", "GITHUB_COPILOT_API_TOKEN", "GITHUB_COPILOT_API_KEY")),
    _openai("vercel", ("VERCEL_AI_GATEWAY_API_KEY", "VERCEL_OIDC_TOKEN")),
    _openai("vllm", ("VLLM_BASE_URL",)),
    _openai("heroku", ("HEROKU_INFERENCE_KEY",)),
    _openai("nebius", ("NEBIUS_API_KEY",)),
    _openai("ovhcloud", ("OVHCLOUD_API_KEY",)),
    _openai("sambanova", ("SAMBANOVA_API_KEY",)),
    _openai("crusoe", ("CRUSOE_API_KEY",)),
    _openai("snowflake", ("SNOWFLAKE_ACCOUNT",), ("SNOWFLAKE_TOKEN",), extra="snowflake"),
    Vendor("typesafe", "typesafe_sdk", "typesafe", (("TYPESAFE_API_KEY",),)),
    # the same key, another interface of it
    _openai("openai-chat", _OPENAI),
    _openai("openai-responses", _OPENAI),
    _openai("azure-responses", *_AZURE),
    _openai(
        "bedrock-mantle", ("AWS_BEARER_TOKEN_BEDROCK",), ("AWS_REGION", "AWS_DEFAULT_REGION"), extra="bedrock-mantle"
    ),
    _openai("gateway/openai", _GATEWAY),
    Vendor("gateway/anthropic", "anthropic", "anthropic", (_GATEWAY,)),
    Vendor("gateway/google", "google.genai", "google", (_GATEWAY,)),
    Vendor("gateway/google-cloud", "google.genai", "google", (_GATEWAY,)),
    Vendor("gateway/groq", "groq", "groq", (_GATEWAY,)),
    Vendor("gateway/bedrock", "boto3", "bedrock", (_GATEWAY,)),
)

VENDORS: Mapping[str, Vendor] = {vendor.name: vendor for vendor in _ALL}
"""By name, the ones that most people have first."""
