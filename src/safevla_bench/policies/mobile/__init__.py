"""Scripts for a mobile manipulator in RoboCasa's kitchens, in the same two styles as the scripts for a fixed arm.

`moves` are what the robot can do, `scripts` what to do for each goal, `style` how fast and how near.
"""

from safevla_bench.policies.mobile.moves import STYLES, MobileStyle
from safevla_bench.policies.mobile.policy import MobilePolicy

__all__ = ["STYLES", "MobilePolicy", "MobileStyle"]
