"""What every section of the configuration shares: frozen, and closed to unknown keys."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A section of the YAML file. A misspelt key is an error: a default that silently stays is worse."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)
