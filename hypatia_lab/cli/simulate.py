"""The command ``hypatia-lab simulate``: an option a field of the scene. Nothing heavy is imported before it runs."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from hypatia_lab.cli import options
from hypatia_lab.cli.terminal import show


def _scene_options(command: Any) -> Any:
    """Add an option a field of the scene, under the field's name.

    One left out keeps the field's own default, which a test compares with the text here: reading it imports torch.
    """
    # Option, field if named otherwise, type, values in words, default, help.
    scene = (
        ("--cell", "", float, "a b c α β γ", "100 100 100 90 90 90", "Unit cell in Å and degrees."),
        ("--misset", "", float, "x y z", "0 0 0", "Degrees about x, then y, then z."),
        ("--cells", "", int, "a b c", "5 5 5", "Unit cells along a, b and c."),
        ("--default-f", "", float, "F", "100", "Structure factor of reflections not in --hkl."),
        ("--mosaic", "mosaic_spread", float, "DEGREES", "0", "Mosaic spread."),
        ("--mosaic-domains", "", int, "N", "1", "Misoriented domains that are averaged."),
        ("--mosaic-seed", "", int, "N", "0", "Draws the rotations of the domains."),
        ("--wavelength", "", float, "Å", "1", "Wavelength."),
        ("--dispersion", "", float, "PERCENT", "0", "Full width of the wavelength."),
        ("--dispersion-steps", "", int, "N", "1", "Wavelengths sampled over that width."),
        ("--polarization", "", float, "K", "0", "Kahn factor about z, -1 to 1; 0 is unpolarized."),
        ("--phi", "", float, "DEGREES", "0", "First spindle angle, about z."),
        ("--osc", "oscillation", float, "DEGREES", "0", "Rotation during the exposure."),
        ("--phi-steps", "steps", int, "N", "1", "Spindle angles sampled over it."),
        ("--pixels", "", int, "SLOW FAST", "1024 1024", "Size of the image."),
        ("--pixel", "", float, "MM", "0.1", "Size of a pixel."),
        ("--distance", "", float, "MM", "100", "From crystal to detector."),
        ("--beam-centre", "", float, "SLOW FAST", "one pixel beyond the middle", "The beam, in mm from a corner."),
        ("--oversample", "", int, "N", "1", "Points along each side of a pixel."),
    )
    for name, field, kind, metavar, default, text in reversed(scene):
        names = (name, field) if field else (name,)
        shown = f"{text}  [default: {default}]"
        command = click.option(*names, type=kind, nargs=len(metavar.split()), metavar=metavar, help=shown)(command)
    return command


@click.command()
@_scene_options
@click.option("--hkl", type=options.FILE, help="Structure factors: a text file, a line 'h k l F' each.")
@options.device
@click.option("--dtype", default="float32", type=click.Choice(["float32", "float64"]), show_default=True)
@click.option("--variant", default="", help="Who computes it, such as c_openmp or eager.  [default: the fastest ready]")
@click.option(
    "--output",
    type=options.FILE,
    default=Path("image.npy"),
    show_default=True,
    help="Image file, replaced if there: .npy, or .f32 for bare float32, slow axis first.",
)
def simulate(device: str, dtype: str, variant: str, output: Path, **given: Any) -> None:
    """Compute a diffraction image and write it to a file.

    \b
    The benchmark of S003, small:
      hypatia-lab simulate --wavelength 6.2 --pixels 256 256 --output cubic.npy
    """
    import time

    _ensure_image_file(output)
    from hypatia_lab.diffraction import simulate as run
    from hypatia_lab.diffraction.simulate import fastest
    from hypatia_lab.machine import choose_device

    scene = _scene(given)
    place = choose_device(device)
    variant = variant or fastest(place, dtype)
    start = time.perf_counter()
    image = run(scene, device=place, dtype=dtype, variant=variant).cpu()
    seconds = time.perf_counter() - start
    _write_image(output, image)
    size = " x ".join(map(str, image.shape))
    told = f"{size} pixels, {scene.steps} step{'s' * (scene.steps > 1)} a pixel, {dtype}, {variant} on {place}"
    show([f"{output}: {told}, {seconds:.3f} s, peak {float(image.max()):.6g}"])


def _scene(given: dict[str, Any]) -> Any:
    """The scene of the options that were given."""
    from hypatia_lab.diffraction import Beam, Crystal, Detector, Scene, Spindle
    from hypatia_lab.diffraction.simulate import read_reflections

    if given["pixels"] is not None:
        given["slow"], given["fast"] = given["pixels"]
    if given["hkl"] is not None:
        given["structure"] = read_reflections(given["hkl"])

    def part(kind: Any) -> Any:
        names = [field.name for field in fields(kind)]
        return kind(**{name: given[name] for name in names if given.get(name) is not None})

    return Scene(part(Crystal), part(Beam), part(Spindle), part(Detector))


def _ensure_image_file(path: Path) -> None:
    """Refuse a file that cannot be written before the image is computed."""
    if path.suffix not in (".npy", ".f32"):
        raise click.UsageError(f"output {path} must end in .npy or .f32")
    if path.is_dir():
        raise click.UsageError(f"output {path} is a folder; name a file")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise click.UsageError(f"cannot write {path}: its folder is missing or not writable")


def _write_image(path: Path, image: Any) -> None:
    import numpy

    new = not path.exists()
    try:
        if path.suffix == ".npy":
            numpy.save(path, image.numpy())
        else:
            image.numpy().astype("<f4").tofile(path)
    except OSError as cause:
        if new:  # a part of an image is none
            path.unlink(missing_ok=True)
        raise click.UsageError(f"cannot write {path}: {cause.strerror or cause}") from cause
