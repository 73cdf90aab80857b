"""The one part that is compiled; all else stands in pyproject.toml, where such parts are still an experiment."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "holdfast.agent.sampling._sweep",
            ["agent/sampling/sweep.c"],
            extra_compile_args=["-std=gnu11", "-O2", "-Wextra"],
            py_limited_api=True,  # it uses nothing of Python: any version loads it
            optional=True,  # without a compiler the agent does the same in Python
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
