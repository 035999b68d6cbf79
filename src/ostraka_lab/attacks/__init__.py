"""What attackers do: pure functions of what they see, each with its paper.

    scene.py      Scene: what an attacker sees when it chooses what to send
    simple.py     sign-flip, scaled, gaussian, zero, nan: they know nothing of others
    moments.py    ipm, alie: from the mean and the deviation of honest updates
    optimised.py  min-max, min-sum: as far out as the spread of honest updates allows
    fang.py       fang: as far back as Krum allows
    mimic.py      mimic: an honest client's update, once more
    poisoning.py  label-flip, backdoor: on the attacker's own examples
    sums.py       means, deviations and inner products of many long rows
    attack.py     Attack: what all of them have in common

A scene is all that they see. They change nothing in it but the state of its rng, so attackers that
know the same send the same. docs/attacks.md compares them.
"""

from ostraka_lab.attacks import moments, optimised, poisoning, simple
from ostraka_lab.attacks.attack import TARGET, Attack, Poison, Scene, always
from ostraka_lab.attacks.poisoning import stamped

__all__ = ["ATTACKS", "TARGET", "Attack", "Poison", "Scene", "stamped"]

_ALL = (
    Attack(
        name="sign-flip",
        summary="the opposite of its own update, enlarged",
        paper="Li et al. 2019",
        send=simple.sign_flip,
        scale_means="how many times longer than its own update",
        default_scale=always(10.0),
    ),
    Attack(
        name="scaled",
        summary="its own update, enlarged",
        paper="Blanchard et al. 2017",
        send=simple.scaled,
        scale_means="how many times longer than its own update",
        # One attacker among a hundred clients then moves the mean as far as all others together.
        default_scale=always(100.0),
    ),
    Attack(
        name="gaussian",
        summary="normal noise",
        paper="Blanchard et al. 2017",
        send=simple.gaussian,
        scale_means="how many times longer than its own update",
        # Ten times hardly disturbs even plain averaging: most directions are nothing to a model.
        default_scale=always(100.0),
    ),
    Attack(
        name="zero",
        summary="nothing but zeros, as a free rider",
        paper="Lin et al. 2019",
        send=simple.zero,
    ),
    Attack(
        name="nan",
        summary="its own update with one NaN",
        paper="Blanchard et al. 2017",
        send=simple.not_a_number,
    ),
    Attack(
        name="label-flip",
        summary="trains on labels y that became classes - 1 - y",
        paper="Fang et al. 2020, Tolpegin et al. 2020",
        poison=poisoning.label_flip,
    ),
    Attack(
        name="ipm",
        summary="the opposite of the honest mean",
        paper="Xie et al. 2020",
        send=moments.ipm,
        least_known=1,
        scale_means="how many times longer than the honest mean",
        default_scale=always(0.5),
    ),
    Attack(
        name="alie",
        summary="the honest mean, off by a little in every coordinate",
        paper="Baruch et al. 2019",
        send=moments.alie,
        least_known=2,
        scale_means="by how many standard deviations",
        default_scale=moments.z_max,
    ),
    Attack(
        name="min-max",
        summary="as far off the honest mean as the most distant honest pair is apart",
        paper="Shejwalkar and Houmansadr 2021",
        send=optimised.min_max,
        least_known=2,
        scale_means="of the largest step off the mean that keeps within the bound",
    ),
    Attack(
        name="min-sum",
        summary="as min-max, with sums of squared distances",
        paper="Shejwalkar and Houmansadr 2021",
        send=optimised.min_sum,
        least_known=2,
        scale_means="of the largest step off the mean that keeps within the bound",
    ),
    Attack(
        name="mimic",
        summary="the update of one honest client",
        paper="Karimireddy et al. 2022",
        send=moments.mimic,
        least_known=1,
    ),
    Attack(
        name="fang",
        summary="against the honest mean in every coordinate, as far as Krum allows",
        paper="Fang et al. 2020",
        send=optimised.fang,
        least_known=4,
        scale_means="of the step with which Krum selects an attacker",
    ),
    Attack(
        name="backdoor",
        summary="trains images with a trigger to be of one class, and enlarges its update",
        paper="Bagdasaryan et al. 2020",
        send=poisoning.model_replacement,
        poison=poisoning.backdoor,
        scale_means="how many times longer than its own update",
        default_scale=poisoning.replacing,
    ),
)

ATTACKS: dict[str, Attack] = {attack.name: attack for attack in _ALL}
