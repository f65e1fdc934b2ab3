"""What tests of several folders share: projects, models, servers, what a refusal says."""
