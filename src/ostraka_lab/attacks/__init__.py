"""What attackers do: pure functions of what they see, each with its paper.

attack     what all attacks have in common; Scene: what an attacker sees when it sends
blind      sign-flip, scaled, gaussian, zero, nan, label-flip: they know nothing of others
informed   ipm, alie, shift, mimic, min-max, min-sum, fang: they know updates of others
crafted    rop, sparse-hybrid, skew: they know these as well, and choose a direction with care
flanders   flanders-lie, flanders-min-max, flanders-opt: as FLANDERS' code has them
backdoors  backdoor, dba, neurotoxin, layer-wise: they teach the model a trigger
lasting    lasting-mimic, poisoned-fl: they remember earlier rounds
optimal    optimal-ipm and others: they know the rule as well, and try it out

A scene is all that they see. They change nothing in it but the state of its rng, so attackers that
know the same send the same. docs/attacks.md compares them.
"""

from functools import partial

from ostraka_lab.attacks import backdoors, blind, crafted, flanders, informed, lasting, optimal
from ostraka_lab.attacks.attack import TARGET, Attack, Poison, Scene, always
from ostraka_lab.attacks.backdoors import stamped

__all__ = ["ATTACKS", "TARGET", "Attack", "Poison", "Scene", "stamped"]

_BOUND = "of the largest step off the mean that keeps within the bound"
_MOST = "of the step off the mean that moves the aggregate most"
_SHEJWALKAR = "Shejwalkar and Houmansadr 2021"
_FLANDERS = "Gabrielli et al. 2023"
_ROP = "Ozfatura et al. 2024 (ROP)"
_SPARSE = "Ozfatura et al. 2024 (hybrid)"
_STRIKE = "Liu et al. 2025"

_ALL = (
    Attack(
        name="sign-flip",
        summary="the opposite of its own update, enlarged",
        paper="Li et al. 2019",
        send=blind.sign_flip,
        scale_means="how many times longer than its own update",
        default_scale=always(10.0),
    ),
    Attack(
        name="scaled",
        summary="its own update, enlarged",
        paper="Blanchard et al. 2017",
        send=blind.scaled,
        scale_means="how many times longer than its own update",
        # One attacker among a hundred clients then moves the mean as far as all others together.
        default_scale=always(100.0),
    ),
    Attack(
        name="gaussian",
        summary="normal noise",
        paper="Blanchard et al. 2017",
        send=blind.gaussian,
        scale_means="how many times longer than its own update",
        # Ten times hardly disturbs even plain averaging: most directions are nothing to a model.
        default_scale=always(100.0),
    ),
    Attack(
        name="zero",
        summary="nothing but zeros, as a free rider",
        paper="Lin et al. 2019",
        send=blind.zero,
    ),
    Attack(
        name="nan",
        summary="its own update with one NaN",
        paper="Blanchard et al. 2017",
        send=blind.not_a_number,
    ),
    Attack(
        name="label-flip",
        summary="trains on labels y that became classes - 1 - y",
        paper="Fang et al. 2020, Tolpegin et al. 2020",
        poison=blind.label_flip,
    ),
    Attack(
        name="ipm",
        summary="the opposite of the honest mean",
        paper="Xie et al. 2020",
        send=informed.ipm,
        least_known=1,
        scale_means="how many times longer than the honest mean",
        # Half of that hides how Multi-Krum fails: it learns on, at half speed.
        default_scale=always(1.0),
        alike=True,
    ),
    Attack(
        name="optimal-ipm",
        summary="the opposite of the honest mean, as long as does most harm to the very rule",
        paper="Xie et al. 2020, Shejwalkar and Houmansadr 2021",
        send=optimal.ipm,
        least_known=2,
        scale_means="of the length that moves the aggregate most",
        alike=True,
    ),
    Attack(
        name="alie",
        summary="the honest mean, off by a little in every coordinate",
        paper="Baruch et al. 2019",
        send=informed.alie,
        least_known=2,
        scale_means="by how many standard deviations",
        default_scale=informed.z_max,
        alike=True,
    ),
    Attack(
        name="optimal-alie",
        summary="as alie, off by as much as does most harm to the very rule",
        paper="Baruch et al. 2019, Shejwalkar and Houmansadr 2021",
        send=optimal.alie,
        least_known=2,
        scale_means=_MOST,
        alike=True,
    ),
    Attack(
        name="shift",
        summary="its own update less a multiple of the honest mean",
        paper="none: a plain idea, against rules that look at spread",
        send=informed.shift,
        least_known=1,
        scale_means="how many times the honest mean",
        default_scale=always(2.0),
    ),
    Attack(
        name="min-max",
        summary="as far off the honest mean as the most distant honest pair is apart",
        paper=_SHEJWALKAR,
        send=informed.min_max,
        least_known=2,
        scale_means=_BOUND,
        alike=True,
    ),
    Attack(
        name="min-sum",
        summary="as min-max, with sums of squared distances",
        paper=_SHEJWALKAR,
        send=informed.min_sum,
        least_known=2,
        scale_means=_BOUND,
        alike=True,
    ),
    Attack(
        name="mimic",
        summary="the update of one honest client",
        paper="Karimireddy et al. 2022",
        send=informed.mimic,
        least_known=1,
        alike=True,
    ),
    Attack(
        name="fang",
        summary="against the honest mean in every coordinate, as far as Krum allows",
        paper="Fang et al. 2020",
        send=informed.fang,
        least_known=4,
        scale_means="of the step with which Krum selects an attacker",
    ),
    Attack(
        name="min-max-sign",
        summary="as min-max, by the same step in every coordinate",
        paper=_SHEJWALKAR,
        send=partial(informed.min_max, perturbation=informed.inverse_sign),
        least_known=2,
        scale_means=_BOUND,
        alike=True,
    ),
    Attack(
        name="min-max-sd",
        summary="as min-max, most where honest updates differ most",
        paper=_SHEJWALKAR,
        send=partial(informed.min_max, perturbation=informed.inverse_deviation),
        least_known=2,
        scale_means=_BOUND,
        alike=True,
    ),
    Attack(
        name="min-sum-sign",
        summary="as min-sum, by the same step in every coordinate",
        paper=_SHEJWALKAR,
        send=partial(informed.min_sum, perturbation=informed.inverse_sign),
        least_known=2,
        scale_means=_BOUND,
        alike=True,
    ),
    Attack(
        name="min-sum-sd",
        summary="as min-sum, most where honest updates differ most",
        paper=_SHEJWALKAR,
        send=partial(informed.min_sum, perturbation=informed.inverse_deviation),
        least_known=2,
        scale_means=_BOUND,
        alike=True,
    ),
    Attack(
        name="optimal-unit",
        summary="as min-max, off by as much as does most harm to the very rule",
        paper=_SHEJWALKAR,
        send=optimal.tried_out(informed.bounded),
        least_known=2,
        scale_means=_MOST,
        alike=True,
    ),
    Attack(
        name="optimal-sign",
        summary="as min-max-sign, off by as much as does most harm to the very rule",
        paper=_SHEJWALKAR,
        send=optimal.tried_out(partial(informed.bounded, perturbation=informed.inverse_sign)),
        least_known=2,
        scale_means=_MOST,
        alike=True,
    ),
    Attack(
        name="rop",
        summary="the last aggregate, off by a step at right angles to it",
        paper=_ROP,
        send=crafted.rop,
        least_known=2,
        scale_means="how many times as far as an honest update is from the mean",
        alike=True,
    ),
    Attack(
        name="optimal-rop",
        summary="as rop, off by as much as does most harm to the very rule",
        paper=_ROP,
        send=optimal.tried_out(crafted.rop_course),
        least_known=2,
        scale_means=_MOST,
        alike=True,
    ),
    Attack(
        name="sparse-hybrid",
        summary="as alie, but further off where the model is most sensitive",
        paper=_SPARSE,
        send=crafted.sparse_hybrid,
        least_known=2,
        scale_means="by how many standard deviations, at the sensitive coordinates",
        default_scale=always(crafted.AGGRESSIVE),
        alike=True,
    ),
    Attack(
        name="optimal-sparse-hybrid",
        summary="as sparse-hybrid, off by as much as does most harm to the very rule",
        paper=_SPARSE,
        send=optimal.tried_out(crafted.sparse_course),
        least_known=2,
        scale_means=_MOST,
        alike=True,
    ),
    Attack(
        name="skew",
        summary="among honest updates that crowd on one side of their mean",
        paper=_STRIKE,
        send=crafted.skew,
        least_known=2,
        scale_means="of the largest step off the crowd that keeps within its width",
        default_scale=always(1.0),
        alike=True,
    ),
    Attack(
        name="optimal-skew",
        summary="as skew, off by as much as does most harm to the very rule",
        paper=_STRIKE,
        send=optimal.tried_out(crafted.skew_course),
        least_known=2,
        scale_means=_MOST,
        alike=True,
    ),
    Attack(
        name="flanders-lie",
        summary="as alie, off by square roots of standard deviations",
        paper=_FLANDERS,
        send=flanders.lie,
        least_known=2,
        scale_means="by how many square roots of standard deviations",
        default_scale=flanders.z,
        alike=True,
    ),
    Attack(
        name="flanders-min-max",
        summary="as min-max-sd, by another search for the step",
        paper=_FLANDERS,
        send=flanders.min_max,
        least_known=2,
        scale_means="of the step that the search finds",
        default_scale=always(1.0),
        alike=True,
    ),
    Attack(
        name="flanders-opt",
        summary="against the model in every coordinate, as far as Krum allows",
        paper=_FLANDERS,
        send=flanders.opt,
        least_known=4,
        scale_means="of the step with which Krum selects an attacker",
        default_scale=always(1.0),
        alike=True,
    ),
    Attack(
        name="lasting-mimic",
        summary="the update of one honest client, chosen over the first rounds",
        paper="Karimireddy et al. 2022",
        send=lasting.mimic,
        learn=lasting.watched,
        least_known=1,
        scale_means="in how many rounds it chooses",
        default_scale=always(lasting.WATCHED),
        alike=True,
    ),
    Attack(
        name="poisoned-fl",
        summary="in every round along the same random signs",
        paper="Xie et al. 2025",
        send=lasting.poisoned_fl,
        learn=lasting.pushed,
        scale_means="how many times longer than the last aggregate, at first",
        default_scale=always(lasting.STRENGTH),
    ),
    Attack(
        name="backdoor",
        summary="trains images with a trigger to be of one class, and enlarges its update",
        paper="Bagdasaryan et al. 2020",
        send=backdoors.model_replacement,
        poison=backdoors.backdoor,
        trigger=stamped,
        scale_means="how many times longer than its own update",
        default_scale=backdoors.replacing,
    ),
    Attack(
        name="dba",
        summary="as backdoor, with a trigger of which every attacker trains one part",
        paper="Xie et al. 2020 (DBA)",
        send=backdoors.model_replacement,
        poison=backdoors.distributed,
        trigger=backdoors.stamped_all_over,
        scale_means="how many times longer than its own update",
        default_scale=backdoors.replacing,
    ),
    Attack(
        name="neurotoxin",
        summary="as backdoor, trained without the coordinates that others change most",
        paper="Zhang et al. 2022",
        send=backdoors.model_replacement,
        poison=backdoors.backdoor,
        trigger=stamped,
        hold=backdoors.frequent,
        scale_means="how many times longer than its own update",
    ),
    Attack(
        name="layer-wise",
        summary="as backdoor in the few layers that it needs, and the honest mean elsewhere",
        paper="Zhuang et al. 2024",
        send=backdoors.layer_wise,
        poison=backdoors.backdoor,
        trigger=stamped,
        least_known=1,
        scale_means="how many times longer than its own update, in these layers",
    ),
)

ATTACKS: dict[str, Attack] = {attack.name: attack for attack in _ALL}
