"""Tell registries what came of builds."""
